// pulsar-admin's own library against the functions of a broker: creates, looks at, stops, starts and deletes one.
import java.util.List;
import org.apache.pulsar.client.admin.PulsarAdmin;
import org.apache.pulsar.client.admin.PulsarAdminException;
import org.apache.pulsar.common.functions.FunctionConfig;
import org.apache.pulsar.common.functions.FunctionState;
import org.apache.pulsar.common.policies.data.FunctionStatsImpl;
import org.apache.pulsar.common.policies.data.FunctionStatus;

public class FunctionsProbe {
    public static void main(String[] arguments) throws Exception {
        String url = arguments[0], file = arguments[1], input = arguments[2], output = arguments[3];
        try (PulsarAdmin admin = PulsarAdmin.builder().serviceHttpUrl(url).build()) {
            FunctionConfig config = FunctionConfig.builder()
                .tenant("public").namespace("default").name("probe").className("exclaim.Exclaim")
                .inputs(List.of(input)).output(output).runtime(FunctionConfig.Runtime.PYTHON).autoAck(true)
                .py(file).parallelism(1).build();
            config.setSubscriptionPosition(org.apache.pulsar.client.api.SubscriptionInitialPosition.Earliest);
            config.setCustomRuntimeOptions("{\"transaction\": {\"transactionMode\": \"MANAGED\"}}");
            admin.functions().createFunction(config, file);
            System.out.println("list=" + admin.functions().getFunctions("public", "default"));
            System.out.println("class=" + admin.functions().getFunction("public", "default", "probe").getClassName());
            FunctionStatus status = null;
            for (int attempt = 0; attempt < 200; attempt++) {
                status = admin.functions().getFunctionStatus("public", "default", "probe");
                if (status.getNumRunning() == 1 && status.getInstances().get(0).getStatus().getNumSuccessfullyProcessed() == 1) {
                    break;
                }
                Thread.sleep(100);
            }
            System.out.println("running=" + status.getNumRunning() + "/" + status.getNumInstances());
            FunctionStatsImpl stats = (FunctionStatsImpl) admin.functions().getFunctionStats("public", "default", "probe");
            System.out.println("minute=" + stats.oneMin.getReceivedTotal());
            System.out.println("stats=" + admin.functions().getFunctionStats("public", "default", "probe").getProcessedSuccessfullyTotal());
            String said = admin.functions().triggerFunction("public", "default", "probe", input, "t", null);
            System.out.println("triggered=" + said.substring(0, 4));
            System.out.println("calls=" + admin.functions().getFunctionState("public", "default", "probe", "calls").getNumberValue());
            FunctionState put = new FunctionState("k", "v", null, null, null);
            admin.functions().putFunctionState("public", "default", "probe", put);
            System.out.println("k=" + admin.functions().getFunctionState("public", "default", "probe", "k").getStringValue());
            config.setParallelism(2);
            admin.functions().updateFunction(config, null);
            System.out.println("instances=" + admin.functions().getFunctionStatus("public", "default", "probe").getNumInstances());
            admin.functions().stopFunction("public", "default", "probe");
            System.out.println("stopped=" + admin.functions().getFunctionStatus("public", "default", "probe").getNumRunning());
            admin.functions().startFunction("public", "default", "probe", 1);
            admin.functions().restartFunction("public", "default", "probe");
            admin.functions().deleteFunction("public", "default", "probe");
            System.out.println("left=" + admin.functions().getFunctions("public", "default"));
            try {
                admin.functions().getFunction("public", "default", "probe");
            } catch (PulsarAdminException.NotFoundException error) {
                System.out.println("gone=" + error.getStatusCode());
            }
        }
    }
}
