import java.util.ArrayList;
import java.util.List;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.CompletionException;
import java.util.concurrent.ExecutionException;
import java.util.concurrent.TimeUnit;
import org.apache.pulsar.client.api.AuthenticationFactory;
import org.apache.pulsar.client.api.ClientBuilder;
import org.apache.pulsar.client.api.Consumer;
import org.apache.pulsar.client.api.Message;
import org.apache.pulsar.client.api.MessageId;
import org.apache.pulsar.client.api.Producer;
import org.apache.pulsar.client.api.PulsarClient;
import org.apache.pulsar.client.api.SubscriptionInitialPosition;
import org.apache.pulsar.client.api.SubscriptionType;
import org.apache.pulsar.client.api.TypedMessageBuilder;
import org.apache.pulsar.client.api.transaction.Transaction;

/**
 * Unchanged Java programs, for tests: `stories URL TOPIC` prints what it saw, a line with "> " each; `relay URL IN OUT` moves
 * every message of IN to OUT, each in a transaction, until nothing more comes, whatever happens to the coordinator;
 * `resend URL TOPIC COUNT BATCHED TRANSACTIONS` sends the numbers from 0 to COUNT with many of them in flight, while somebody cuts its
 * connections, and prints which ones it committed. PROBE_TOKEN and PROBE_TRUST let it in where clients have to say who they are.
 */
public class FrontProbe {
    static Consumer<byte[]> consumer(PulsarClient client, String topic, String name, SubscriptionType type) throws Exception {
        return client.newConsumer().topic(topic).subscriptionName(name).subscriptionType(type)
                .subscriptionInitialPosition(SubscriptionInitialPosition.Earliest).subscribe();
    }

    static Producer<byte[]> producer(PulsarClient client, String topic) throws Exception {
        return client.newProducer().topic(topic).sendTimeout(0, TimeUnit.SECONDS).create();
    }

    static Transaction begin(PulsarClient client, int seconds) throws Exception {
        return client.newTransaction().withTransactionTimeout(seconds, TimeUnit.SECONDS).build().get();
    }

    static String nameOf(Throwable error) {
        while ((error instanceof ExecutionException || error instanceof CompletionException) && error.getCause() != null) {
            error = error.getCause();
        }
        return error.getClass().getSimpleName();
    }

    static String failure(CompletableFuture<?> asked) {
        try {
            asked.get(60, TimeUnit.SECONDS);
            return "done";
        } catch (Exception error) {
            return nameOf(error);
        }
    }

    static String values(Consumer<byte[]> consumer, int count) throws Exception {
        List<String> found = new ArrayList<>();
        for (Message<byte[]> message; (message = consumer.receive(found.size() < count ? 20_000 : 300,
                TimeUnit.MILLISECONDS)) != null;) {
            found.add(new String(message.getValue()));
        }
        return String.join(",", found);
    }

    static PulsarClient client(String url, int operationSeconds) throws Exception {
        ClientBuilder builder = PulsarClient.builder().serviceUrl(url).enableTransaction(true)
                .operationTimeout(operationSeconds, TimeUnit.SECONDS);
        if (System.getenv("PROBE_TOKEN") != null) {
            builder.authentication(AuthenticationFactory.token(System.getenv("PROBE_TOKEN")));
            builder.tlsTrustCertsFilePath(System.getenv("PROBE_TRUST")).enableTlsHostnameVerification(true);
        }
        return builder.build();
    }

    static void stories(String url, String topic) throws Exception {
        try (PulsarClient client = client(url, 30)) {
            String in = topic + "-in", out = topic + "-out";
            Producer<byte[]> source = producer(client, in), output = producer(client, out);
            Consumer<byte[]> consumer = consumer(client, in, "s", SubscriptionType.Shared);
            Consumer<byte[]> reader = consumer(client, out, "reader", SubscriptionType.Exclusive);
            List<MessageId> ids = new ArrayList<>();
            for (int number = 0; number < 4; number++) {
                source.send(("in " + number).getBytes());
                ids.add(consumer.receive().getMessageId());
            }

            Transaction commit = begin(client, 60), abort = begin(client, 60);
            for (Transaction each : List.of(commit, abort)) {
                System.out.println("> id " + each.getTxnID().getMostSigBits() + " " + each.getTxnID().getLeastSigBits());
            }
            for (int number = 0; number < 3; number++) {
                output.newMessage(commit).value(("commit " + number).getBytes()).sendAsync();
                output.newMessage(abort).value(("abort " + number).getBytes()).sendAsync();
            }
            consumer.acknowledgeAsync(ids.get(0), commit).get();
            consumer.acknowledgeAsync(ids.get(1), abort).get();
            System.out.println("> open " + values(reader, 0));
            System.out.println("> conflict " + failure(consumer.acknowledgeAsync(ids.get(0), abort)));
            System.out.println("> commit " + failure(commit.commit()));
            System.out.println("> abort " + failure(abort.abort()));
            System.out.println("> committed " + values(reader, 3));
            System.out.println("> again " + values(consumer, 1));

            Transaction late = begin(client, 1);
            output.newMessage(late).value("late".getBytes()).send();
            output.send("plain".getBytes());
            System.out.println("> after a timeout " + values(reader, 1));
            System.out.println("> commit of it " + failure(late.commit()));

            List<CompletableFuture<Void>> many = new ArrayList<>();
            for (int number = 0; number < 100; number++) {
                int each = number;
                many.add(client.newTransaction().withTransactionTimeout(60, TimeUnit.SECONDS).build().thenCompose(txn ->
                        output.newMessage(txn).value(("m" + each).getBytes()).sendAsync()
                                .thenCompose(sent -> each % 4 == 0 ? txn.abort() : txn.commit())));
            }
            CompletableFuture.allOf(many.toArray(new CompletableFuture[0])).get(60, TimeUnit.SECONDS);
            System.out.println("> many " + values(reader, 75).split(",").length);
        }
    }

    /** Whatever fails is not asked again here: the message comes again if its transaction was aborted, and never otherwise. */
    static void relay(String url, String in, String out) throws Exception {
        try (PulsarClient client = client(url, 10)) {
            Producer<byte[]> output = producer(client, out);
            Consumer<byte[]> consumer = client.newConsumer().topic(in).subscriptionName("relay")
                    .subscriptionType(SubscriptionType.Shared).negativeAckRedeliveryDelay(1, TimeUnit.SECONDS).subscribe();
            int done = 0, failed = 0;
            long settled = System.nanoTime();
            while (true) {
                Message<byte[]> message = consumer.receive(5, TimeUnit.SECONDS);
                if (message == null && System.nanoTime() - settled >= 0) {
                    return;
                } else if (message == null) {
                    continue;
                }
                try {
                    Transaction txn = begin(client, 4);
                    output.newMessage(txn).value(message.getValue()).send();
                    consumer.acknowledgeAsync(message.getMessageId(), txn).get();
                    txn.commit().get();
                    System.out.println("> done " + ++done);
                } catch (Exception error) {
                    System.out.println("> failed " + nameOf(error) + " " + ++failed);
                    consumer.negativeAcknowledge(message);
                    settled = System.nanoTime() + TimeUnit.SECONDS.toNanos(20);
                }
            }
        }
    }

    /**
     * Ten numbers for each of four transactions, and ten more: a batch has messages of one transaction only. The first message of each is
     * awaited, because Java does not keep the order of what waits for the registration of a topic. Each third transaction is aborted.
     */
    static void resend(String url, String topic, int count, boolean batched, boolean transactions) throws Exception {
        try (PulsarClient client = client(url, 30)) {
            Producer<byte[]> output = client.newProducer().topic(topic).sendTimeout(0, TimeUnit.SECONDS).blockIfQueueFull(true)
                    .maxPendingMessages(100).enableBatching(batched).batchingMaxMessages(10).create();
            List<CompletableFuture<?>> all = new ArrayList<>();
            List<String> committed = new ArrayList<>();
            for (int first = 0, made = 0; first < count; first += 80) {
                List<Transaction> open = new ArrayList<>();
                List<List<CompletableFuture<?>>> sends = new ArrayList<>();
                for (int which = 0; which < 4; which++) {
                    open.add(transactions ? begin(client, 120) : null);
                    sends.add(new ArrayList<>());
                }
                for (int number = first; number < Math.min(first + 80, count); number++) {
                    int which = number / 10 % 4;
                    byte[] value = String.valueOf(number).getBytes();
                    TypedMessageBuilder<byte[]> message = transactions ? output.newMessage(open.get(which)) : output.newMessage();
                    CompletableFuture<MessageId> sent = message.value(value).sendAsync();
                    if (sends.get(which).isEmpty()) {
                        sent.get(60, TimeUnit.SECONDS);
                    }
                    sends.get(which).add(sent);
                    if ((made + which) % 3 != 0) {
                        committed.add(String.valueOf(number));
                    }
                }
                for (int which = 0; which < 4; which++, made++) {
                    Transaction txn = open.get(which);
                    boolean abort = made % 3 == 0;
                    CompletableFuture<Void> sent = CompletableFuture.allOf(sends.get(which).toArray(new CompletableFuture[0]));
                    all.add(transactions ? sent.thenCompose(done -> abort ? txn.abort() : txn.commit()) : sent);
                }
            }
            CompletableFuture.allOf(all.toArray(new CompletableFuture[0])).get(60, TimeUnit.SECONDS);
            System.out.println("> committed " + String.join(",", committed));
        }
    }

    public static void main(String[] args) throws Exception {
        if (args[0].equals("stories")) {
            stories(args[1], args[2]);
        } else if (args[0].equals("resend")) {
            resend(args[1], args[2], Integer.parseInt(args[3]), Boolean.parseBoolean(args[4]), Boolean.parseBoolean(args[5]));
        } else {
            relay(args[1], args[2], args[3]);
        }
        System.exit(0);
    }
}
