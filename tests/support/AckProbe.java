import java.util.ArrayList;
import java.util.List;
import java.util.Random;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.TimeUnit;
import org.apache.pulsar.client.api.Consumer;
import org.apache.pulsar.client.api.Message;
import org.apache.pulsar.client.api.Producer;
import org.apache.pulsar.client.api.PulsarClient;
import org.apache.pulsar.client.api.SubscriptionInitialPosition;
import org.apache.pulsar.client.api.SubscriptionType;
import org.apache.pulsar.client.api.transaction.Transaction;

/**
 * What an unchanged Java program acknowledges in transactions, for tests. `twice URL TOPIC` prints what each of some pairs of
 * acknowledgements in one transaction comes to, a line with "> " each. `worker URL IN OUT TYPE SEED` moves every message of IN to
 * OUT, several in each transaction and with a full receiver queue, aborts some of them, and ends when nothing more comes.
 */
public class AckProbe {
    static final int QUIET_MILLIS = 3000;

    static Consumer<byte[]> consumer(PulsarClient client, String topic, String name, SubscriptionType type) throws Exception {
        return client.newConsumer().topic(topic).subscriptionName(name).subscriptionType(type).receiverQueueSize(1000)
                .subscriptionInitialPosition(SubscriptionInitialPosition.Earliest).subscribe();
    }

    static Transaction begin(PulsarClient client) throws Exception {
        return client.newTransaction().withTransactionTimeout(60, TimeUnit.SECONDS).build().get();
    }

    static String outcome(CompletableFuture<?> asked) {
        try {
            asked.get(30, TimeUnit.SECONDS);
            return "done";
        } catch (Exception error) {
            Throwable cause = error.getCause() == null ? error : error.getCause();
            return cause.getClass().getSimpleName();
        }
    }

    static void twice(String url, String topic) throws Exception {
        try (PulsarClient client = PulsarClient.builder().serviceUrl(url).enableTransaction(true).build()) {
            Producer<byte[]> producer = client.newProducer().topic(topic).enableBatching(false).create();
            for (int number = 0; number < 4; number++) {
                producer.send(new byte[] {(byte) number});
            }
            Consumer<byte[]> consumer = consumer(client, topic, "s", SubscriptionType.Exclusive);
            List<Message<byte[]>> messages = new ArrayList<>();
            for (int number = 0; number < 4; number++) {
                messages.add(consumer.receive(30, TimeUnit.SECONDS));
            }
            Transaction txn = begin(client);
            String first = outcome(consumer.acknowledgeAsync(messages.get(0).getMessageId(), txn));
            System.out.println("> one " + first + " " + outcome(consumer.acknowledgeAsync(messages.get(0).getMessageId(), txn)));
            txn.abort().get();
            txn = begin(client);
            first = outcome(consumer.acknowledgeCumulativeAsync(messages.get(1).getMessageId(), txn));
            System.out.println("> cumulative " + first + " "
                    + outcome(consumer.acknowledgeCumulativeAsync(messages.get(1).getMessageId(), txn)));
            txn.abort().get();
            consumer.acknowledge(messages.get(2));
            Thread.sleep(500); // the client groups plain acknowledgements for a moment
            txn = begin(client);
            System.out.println("> after a plain one " + outcome(consumer.acknowledgeAsync(messages.get(2).getMessageId(), txn)));
            txn.abort().get();
            consumer = consumer(client, topic, "copies", SubscriptionType.Exclusive);
            Message<byte[]> message = consumer.receive(30, TimeUnit.SECONDS);
            txn = begin(client);
            consumer.acknowledgeAsync(message.getMessageId(), txn).get();
            txn.abort().get();
            txn = begin(client);
            int received = 0;
            for (; (message = consumer.receive(1, TimeUnit.SECONDS)) != null; received++) {
                consumer.acknowledgeAsync(message.getMessageId(), txn);
            }
            System.out.println("> copies " + (received > 4) + " " + outcome(txn.commit()));
        }
    }

    static void worker(String url, String in, String out, SubscriptionType type, long seed) throws Exception {
        Random random = new Random(seed);
        try (PulsarClient client = PulsarClient.builder().serviceUrl(url).enableTransaction(true).build()) {
            Consumer<byte[]> consumer = consumer(client, in, "s", type);
            Producer<byte[]> producer = client.newProducer().topic(out).sendTimeout(0, TimeUnit.SECONDS).create();
            int committed = 0, aborted = 0, refused = 0;
            System.out.println("> ready");
            for (Message<byte[]> message; (message = consumer.receive(QUIET_MILLIS, TimeUnit.MILLISECONDS)) != null;) {
                Transaction txn = begin(client);
                int count = 1 + random.nextInt(12);
                while (message != null) {
                    producer.newMessage(txn).value(message.getValue()).sendAsync();
                    consumer.acknowledgeAsync(message.getMessageId(), txn);
                    message = --count > 0 ? consumer.receive(50, TimeUnit.MILLISECONDS) : null;
                }
                if (random.nextInt(5) == 0) {
                    txn.abort().get();
                    aborted++;
                } else if (outcome(txn.commit()).equals("done")) {
                    committed++;
                } else {
                    outcome(txn.abort());
                    refused++;
                }
            }
            System.out.println("> " + committed + " " + aborted + " " + refused);
        }
    }

    public static void main(String[] args) throws Exception {
        if (args[0].equals("twice")) {
            twice(args[1], args[2]);
        } else {
            worker(args[1], args[2], args[3], SubscriptionType.valueOf(args[4]), Long.parseLong(args[5]));
        }
        System.exit(0);
    }
}
