import java.util.concurrent.TimeUnit;
import org.apache.pulsar.client.api.Consumer;
import org.apache.pulsar.client.api.Message;
import org.apache.pulsar.client.api.Producer;
import org.apache.pulsar.client.api.PulsarClient;
import org.apache.pulsar.client.api.Schema;
import org.apache.pulsar.client.api.SubscriptionInitialPosition;
import org.apache.pulsar.common.schema.KeyValue;
import org.apache.pulsar.common.schema.KeyValueEncodingType;

/** Java's side of the tests of KeyValueSchema: sends three pairs to a topic, prints the pairs of another one. */
public class KeyValueProbe {
    public static void main(String[] args) throws Exception {
        KeyValueEncodingType encoding = KeyValueEncodingType.valueOf(args[1]);
        Schema<KeyValue<String, Integer>> schema = Schema.KeyValue(Schema.STRING, Schema.INT32, encoding);
        try (PulsarClient client = PulsarClient.builder().serviceUrl(args[0]).build()) {
            try (Producer<KeyValue<String, Integer>> producer = client.newProducer(schema).topic(args[2]).create()) {
                producer.send(new KeyValue<>("a", 1));
                producer.send(new KeyValue<>("ä", -2));
                producer.send(new KeyValue<>("gone", null));
            }
            try (Consumer<KeyValue<String, Integer>> consumer = client.newConsumer(schema).topic(args[3])
                    .subscriptionName("java").subscriptionInitialPosition(SubscriptionInitialPosition.Earliest)
                    .subscribe()) {
                for (int count = 0; count < 3; count++) {
                    Message<KeyValue<String, Integer>> message = consumer.receive(20, TimeUnit.SECONDS);
                    System.out.println(message.getValue().getKey() + "=" + message.getValue().getValue());
                }
            }
        }
    }
}
