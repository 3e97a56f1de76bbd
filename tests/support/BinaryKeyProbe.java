import java.nio.charset.StandardCharsets;
import java.util.HexFormat;
import java.util.concurrent.TimeUnit;
import org.apache.pulsar.client.api.Consumer;
import org.apache.pulsar.client.api.Message;
import org.apache.pulsar.client.api.Producer;
import org.apache.pulsar.client.api.PulsarClient;
import org.apache.pulsar.client.api.Schema;
import org.apache.pulsar.client.api.SubscriptionInitialPosition;
import org.apache.pulsar.common.schema.KeyValue;
import org.apache.pulsar.common.schema.KeyValueEncodingType;

/** Java's side of the tests of binary keys: sends to a topic and, as separated pairs, to another; prints the keys of a third. */
public class BinaryKeyProbe {
    public static void main(String[] args) throws Exception {
        byte[] key = HexFormat.of().parseHex("ff00fe");
        Schema<KeyValue<byte[], byte[]>> pairs =
                Schema.KeyValue(Schema.BYTES, Schema.BYTES, KeyValueEncodingType.SEPARATED);
        try (PulsarClient client = PulsarClient.builder().serviceUrl(args[0]).build()) {
            try (Producer<byte[]> producer = client.newProducer().topic(args[1]).create()) {
                producer.newMessage().keyBytes(key).value("bytes".getBytes(StandardCharsets.UTF_8)).send();
                producer.newMessage().key("text").value("text".getBytes(StandardCharsets.UTF_8)).send();
            }
            try (Producer<KeyValue<byte[], byte[]>> producer = client.newProducer(pairs).topic(args[2]).create()) {
                producer.send(new KeyValue<>(key, new byte[] {7}));
            }
            for (String topic : new String[] {args[3], args[4]}) {
                boolean arePairs = topic.equals(args[4]);
                try (Consumer<?> consumer = (arePairs ? client.newConsumer(pairs) : client.newConsumer()).topic(topic)
                        .subscriptionName("java").subscriptionInitialPosition(SubscriptionInitialPosition.Earliest)
                        .subscribe()) {
                    for (int count = 0; count < (arePairs ? 1 : 3); count++) {
                        Message<?> message = consumer.receive(20, TimeUnit.SECONDS);
                        byte[] found = arePairs ? (byte[]) ((KeyValue<?, ?>) message.getValue()).getKey() : message.getKeyBytes();
                        System.out.println("key " + message.hasBase64EncodedKey() + " " + HexFormat.of().formatHex(found));
                    }
                }
            }
        }
    }
}
