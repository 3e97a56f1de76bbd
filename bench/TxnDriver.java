// The driver with the Java client: transactions of SENDS sends and ACKS acknowledgements, INFLIGHT at a time.
//
//   java -cp 'LIB/*:CLASSES' TxnDriver URL INFLIGHT SENDS ACKS INPUT WARM_SECONDS SECONDS PID...
//
// As bench/driver.py: 100-byte messages, batching off, the input lies there before. Prints one line of JSON.

import java.nio.file.Files;
import java.nio.file.Path;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.List;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.ConcurrentLinkedQueue;
import java.util.concurrent.Semaphore;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.atomic.AtomicInteger;
import org.apache.pulsar.client.api.Consumer;
import org.apache.pulsar.client.api.MessageId;
import org.apache.pulsar.client.api.Producer;
import org.apache.pulsar.client.api.PulsarClient;
import org.apache.pulsar.client.api.SubscriptionInitialPosition;
import org.apache.pulsar.client.api.SubscriptionType;

public class TxnDriver {
    static final byte[] PAYLOAD = new byte[100];

    static double cpu(List<Long> pids) throws Exception {
        double total = 0;
        for (long pid : pids) {
            Path file = Path.of("/proc/" + pid + "/stat");
            if (!Files.exists(file)) continue;  // a helper that ended meanwhile
            String stat = Files.readString(file);
            String[] fields = stat.substring(stat.lastIndexOf(')') + 2).split(" ");
            total += (Long.parseLong(fields[11]) + Long.parseLong(fields[12])) / 100.0;
        }
        return total;
    }

    public static void main(String[] args) throws Exception {
        int inFlight = Integer.parseInt(args[1]), sends = Integer.parseInt(args[2]), acks = Integer.parseInt(args[3]);
        int input = Integer.parseInt(args[4]);
        double warm = Double.parseDouble(args[5]), seconds = Double.parseDouble(args[6]);
        List<Long> servers = new ArrayList<>();
        for (int i = 7; i < args.length; i++) servers.add(Long.parseLong(args[i]));
        List<Long> self = List.of(ProcessHandle.current().pid());
        String name = "bench-" + System.nanoTime();
        ConcurrentLinkedQueue<Double> latencies = new ConcurrentLinkedQueue<>();
        AtomicInteger errors = new AtomicInteger();
        try (PulsarClient client = PulsarClient.builder().serviceUrl(args[0]).enableTransaction(true)
                .statsInterval(0, TimeUnit.SECONDS).operationTimeout(60, TimeUnit.SECONDS).build()) {
            Consumer<byte[]> consumer = client.newConsumer().topic(name + "-in").subscriptionName("s")
                    .subscriptionType(SubscriptionType.Shared).receiverQueueSize(5000)
                    .subscriptionInitialPosition(SubscriptionInitialPosition.Earliest).subscribe();
            try (Producer<byte[]> fill = producer(client, name + "-in")) {
                for (int i = 0; i < input; i++) fill.sendAsync(PAYLOAD);
                fill.flush();
            }
            Producer<byte[]> producer = producer(client, name + "-out");
            Semaphore slots = new Semaphore(inFlight);
            long start = 0, warmEnd = System.nanoTime() + (long) (warm * 1e9), end = Long.MAX_VALUE;
            double serverCpu = 0, ownCpu = 0;
            for (int used = 0; used + acks <= input; used += acks) {
                slots.acquire();
                List<MessageId> ids = new ArrayList<>(acks);
                for (int i = 0; i < acks; i++) ids.add(consumer.receive().getMessageId());
                long began = System.nanoTime();
                if (start == 0 && began >= warmEnd) {
                    start = began;
                    end = began + (long) (seconds * 1e9);
                    serverCpu = cpu(servers);
                    ownCpu = cpu(self);
                    latencies.clear();
                }
                if (began >= end) {
                    slots.release();
                    break;
                }
                client.newTransaction().withTransactionTimeout(60, TimeUnit.SECONDS).build().thenCompose(txn -> {
                    List<CompletableFuture<?>> operations = new ArrayList<>(sends + acks);
                    for (int i = 0; i < sends; i++) operations.add(producer.newMessage(txn).value(PAYLOAD).sendAsync());
                    for (MessageId id : ids) operations.add(consumer.acknowledgeAsync(id, txn));
                    return CompletableFuture.allOf(operations.toArray(new CompletableFuture[0])).thenCompose(v -> txn.commit());
                }).whenComplete((v, error) -> {
                    if (error == null) latencies.add((System.nanoTime() - began) / 1e6);
                    else if (errors.incrementAndGet() < 4) System.err.println(error);
                    slots.release();
                });
            }
            double counted = (System.nanoTime() - start) / 1e9;
            double[] sorted = latencies.stream().mapToDouble(Double::doubleValue).toArray();
            Arrays.sort(sorted);
            System.out.printf("{\"count\": %d, \"seconds\": %f, \"server_cpu\": %f, \"driver_cpu\": %f, \"syncs\": null, "
                    + "\"errors\": [%s], \"latencies_ms\": %s}%n", sorted.length, counted, cpu(servers) - serverCpu,
                    cpu(self) - ownCpu, errors.get() == 0 ? "" : "\"" + errors.get() + " failed\"", Arrays.toString(sorted));
            slots.tryAcquire(inFlight, 60, TimeUnit.SECONDS);
        }
        System.exit(errors.get() == 0 ? 0 : 1);
    }

    static Producer<byte[]> producer(PulsarClient client, String topic) throws Exception {
        return client.newProducer().topic(topic).enableBatching(false).sendTimeout(0, TimeUnit.SECONDS)
                .maxPendingMessages(10000).blockIfQueueFull(true).create();
    }
}
