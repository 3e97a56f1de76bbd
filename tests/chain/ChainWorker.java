import com.fasterxml.jackson.databind.JsonNode;
import com.fasterxml.jackson.databind.ObjectMapper;
import java.io.File;
import java.io.FileOutputStream;
import java.io.IOException;
import java.nio.charset.StandardCharsets;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.HashMap;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.Random;
import java.util.TreeMap;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.CompletionException;
import java.util.concurrent.ExecutionException;
import java.util.concurrent.TimeUnit;
import java.util.zip.CRC32;
import org.apache.pulsar.client.api.BatcherBuilder;
import org.apache.pulsar.client.api.Consumer;
import org.apache.pulsar.client.api.Message;
import org.apache.pulsar.client.api.MessageId;
import org.apache.pulsar.client.api.MessageIdAdv;
import org.apache.pulsar.client.api.Producer;
import org.apache.pulsar.client.api.PulsarClient;
import org.apache.pulsar.client.api.PulsarClientException;
import org.apache.pulsar.client.api.SubscriptionInitialPosition;
import org.apache.pulsar.client.api.SubscriptionType;
import org.apache.pulsar.client.api.transaction.Transaction;

/**
 * One process of the chain with the official Java client: works on all hops of its chain until SIGTERM, or until it is killed.
 *
 *     java ChainWorker PHASE.json WORKER INCARNATION FOLDER SERVICE_URL
 *
 * The program is one that many would write, and that looks right: receive some messages, send what is made of each and acknowledge each,
 * both without waiting, wait for all answers, commit; abort when one failed, and one time in five in any case. It looks at no message
 * twice, has a large receiver queue, and never gives back what an aborted transaction acknowledged, because the broker does that.
 */
public final class ChainWorker {
    static final ObjectMapper JSON = new ObjectMapper();
    static final int RECEIVER_QUEUE = 1000;
    static final int[] TAKEN = {1, 2, 3, 5, 12};
    static final double ABORTED = 0.2;
    static final int WAIT_MS = 200;
    static final int TIMEOUT_MS = 4000;
    static final long AGAIN_MS = 200;
    static final long IDLE_MS = 5000;
    static final long ANSWER_SECONDS = 15;
    static final String SUBSCRIPTION = "workers";
    static volatile boolean stopped;

    /** The history of this process; see `history_format.py`. */
    static final class History {
        final String process;
        private final FileOutputStream file;
        private final Map<Integer, String> open = new HashMap<>();
        private int next;

        History(String folder, String process) throws IOException {
            this.process = process;
            Path path = Path.of(folder, process + ".jsonl");
            Files.createFile(path);  // refuses a name that was used before
            this.file = new FileOutputStream(path.toFile(), true);
        }

        synchronized int invoke(String f, Map<String, Object> value) {
            open.put(next, f);
            write(f, "invoke", next, value);
            return next++;
        }

        synchronized void complete(int op, String type, Map<String, Object> value) {
            write(open.remove(op), type, op, value);
        }

        synchronized void event(String f, Map<String, Object> value) {
            write(f, "ok", null, value);
        }

        private void write(String f, String type, Integer op, Map<String, Object> value) {
            Map<String, Object> line = of("t_mono_ns", System.nanoTime(), "process", process, "f", f, "type", type);
            if (op != null) {
                line.put("op", op);
            }
            line.put("value", value);
            try {
                file.write((JSON.writeValueAsString(line) + "\n").getBytes(StandardCharsets.UTF_8));
            } catch (IOException error) {
                throw new IllegalStateException(error);
            }
        }
    }

    /** One hop: its consumer, its producer, and the transactions between. */
    static final class Hop implements Runnable {
        private final PulsarClient client;
        private final History history;
        private final JsonNode hop;
        private final Random random;
        private final Map<String, Object> source;
        private final String producerName;
        private final Map<String, Integer> seqs = new HashMap<>();
        private int transactions;

        Hop(PulsarClient client, History history, JsonNode hop, long seed) {
            this.client = client;
            this.history = history;
            this.hop = hop;
            this.random = new Random(seed);
            String topic = text("source"), letter = topic.substring(topic.length() - 1);
            this.producerName = history.process + "." + letter;
            this.source = of("topic", topic, "partition", -1, "subscription", SUBSCRIPTION, "consumer", history.process + "." + letter);
        }

        private String text(String field) {
            return hop.get(field).asText();
        }

        @Override
        public void run() {
            while (!stopped) {
                int op = history.invoke("subscribe", with(source, "mode", text("mode"), "initial", "earliest"));
                boolean joined = false;
                try (Consumer<byte[]> consumer = subscribe()) {
                    history.complete(op, "ok", of());
                    joined = true;
                    try (Producer<byte[]> producer = produce()) {
                        // A negative acknowledgement while this client connects anew raises the epoch of an Exclusive or Failover
                        // consumer and tells no broker; from then on it filters all that it gets, and looks idle.
                        long busy = System.nanoTime();
                        while (!stopped && System.nanoTime() - busy < TimeUnit.MILLISECONDS.toNanos(IDLE_MS)) {
                            busy = work(consumer, producer) ? System.nanoTime() : busy;
                        }
                    }
                } catch (PulsarClientException error) {
                    if (!joined) {
                        history.complete(op, "info", of("error", String.valueOf(error)));
                    }
                    told(error);
                    pause(AGAIN_MS);
                }
            }
        }

        private Consumer<byte[]> subscribe() throws PulsarClientException {
            return client.newConsumer().topic(text("source")).subscriptionName(SUBSCRIPTION)
                    .subscriptionType(SubscriptionType.valueOf(text("mode"))).receiverQueueSize(RECEIVER_QUEUE)
                    .subscriptionInitialPosition(SubscriptionInitialPosition.Earliest)
                    .negativeAckRedeliveryDelay(100, TimeUnit.MILLISECONDS).subscribe();
        }

        private Producer<byte[]> produce() throws PulsarClientException {
            boolean byKey = text("next_mode").equals("Key_Shared");
            return client.newProducer().topic(text("target")).enableBatching(hop.get("batched").asBoolean())
                    .batcherBuilder(byKey ? BatcherBuilder.KEY_BASED : BatcherBuilder.DEFAULT)
                    .sendTimeout((int) ANSWER_SECONDS, TimeUnit.SECONDS).blockIfQueueFull(true).create();
        }

        /** One transaction, if there is something to do. */
        private boolean work(Consumer<byte[]> consumer, Producer<byte[]> producer) throws PulsarClientException {
            List<Message<byte[]>> messages = new ArrayList<>();
            List<JsonNode> inputs = new ArrayList<>();
            int most = TAKEN[random.nextInt(TAKEN.length)];
            Message<byte[]> message;
            while (messages.size() < most && (message = consumer.receive(WAIT_MS, TimeUnit.MILLISECONDS)) != null) {
                messages.add(message);
                inputs.add(delivered(message));
            }
            if (!messages.isEmpty()) {
                transact(consumer, producer, messages, inputs);
            }
            return !messages.isEmpty();
        }

        private void transact(Consumer<byte[]> consumer, Producer<byte[]> producer, List<Message<byte[]>> messages, List<JsonNode> inputs) {
            String name = history.process + "/" + producerName.substring(producerName.length() - 1) + transactions++;
            int op = history.invoke("begin", of("txn", name, "timeout_ms", TIMEOUT_MS));
            Transaction txn;
            try {
                txn = client.newTransaction().withTransactionTimeout(TIMEOUT_MS, TimeUnit.MILLISECONDS).build()
                        .get(ANSWER_SECONDS, TimeUnit.SECONDS);
            } catch (Exception error) {
                history.complete(op, "info", of("error", nameOf(error)));
                messages.forEach(consumer::negativeAcknowledge);
                pause(AGAIN_MS);
                return;
            }
            String id = "(" + txn.getTxnID().getMostSigBits() + "," + txn.getTxnID().getLeastSigBits() + ")";
            history.complete(op, "ok", of("id", id));
            List<CompletableFuture<?>> sent = new ArrayList<>(), acknowledged = new ArrayList<>();
            boolean failed = false;
            try {
                for (int number = 0; number < messages.size(); number++) {
                    sent.add(send(producer, txn, name, inputs.get(number), number, messages.size()));
                    if (number == 0) {  // the client keeps no order among sends that wait for the registration of the topic
                        sent.get(0).get(ANSWER_SECONDS, TimeUnit.SECONDS);
                    }
                    acknowledged.add(acknowledge(consumer, txn, name, messages.get(number)));
                }
                CompletableFuture.allOf(sent.toArray(new CompletableFuture[0])).get(ANSWER_SECONDS, TimeUnit.SECONDS);
                CompletableFuture.allOf(acknowledged.toArray(new CompletableFuture[0])).get(ANSWER_SECONDS, TimeUnit.SECONDS);
            } catch (Exception error) {
                told(error);
                failed = true;
            }
            boolean aborts = failed || random.nextDouble() < ABORTED;
            end(txn, name, aborts ? "abort" : "commit");
            for (int number = 0; failed && number < messages.size(); number++) {
                if (number >= acknowledged.size() || !acknowledged.get(number).isDone()
                        || acknowledged.get(number).isCompletedExceptionally()) {
                    consumer.negativeAcknowledge(messages.get(number));
                }
            }
            if (failed) {
                pause(AGAIN_MS);
            }
        }

        private void end(Transaction txn, String name, String verb) {
            int op = history.invoke(verb, of("txn", name));
            try {
                (verb.equals("abort") ? txn.abort() : txn.commit()).get(ANSWER_SECONDS, TimeUnit.SECONDS);
                history.complete(op, "ok", of());
            } catch (Exception error) {  // its coordinator has ended it, or will do so at its timeout
                history.complete(op, "info", of("error", nameOf(error)));
                told(error);
            }
        }

        private CompletableFuture<?> send(Producer<byte[]> producer, Transaction txn, String name, JsonNode input, int number, int count) {
            String who = producerName, key = input.get("key").asText(), topic = text("target");
            if (hop.get("batched").asBoolean()) {  // batches are by key there, so order is kept within a key only
                who += "." + key;
            }
            int seq = seqs.merge(who, 1, Integer::sum) - 1;
            Map<String, Object> payload = of("producer", who, "epoch", 0, "txn", name, "i", number, "n", count,
                    "parts", List.of(List.of(topic, -1)), "seq", seq,
                    "inputs", List.of(Arrays.asList(input.get("producer"), input.get("seq"))));
            payload.put("crc", crc(payload));
            payload.put("root", input.get("root"));
            payload.put("key", key);
            int op = history.invoke("send", of("topic", topic, "partition", -1, "producer", who, "seq", seq, "txn", name, "payload", payload));
            return producer.newMessage(txn).key(key).value(bytes(payload)).sendAsync().whenComplete((at, error) -> {
                if (error != null) {
                    history.complete(op, "info", of("error", nameOf(error)));
                } else if (((MessageIdAdv) at).getLedgerId() < 0) {
                    history.complete(op, "info", of("note", "the broker had it already"));
                } else {
                    history.complete(op, "ok", of("position", position(at)));
                }
            });
        }

        private CompletableFuture<?> acknowledge(Consumer<byte[]> consumer, Transaction txn, String name, Message<byte[]> message) {
            MessageId id = message.getMessageId();
            int op = history.invoke("ack", with(source, "positions", List.of(position(id)), "kind", "individual", "txn", name));
            return consumer.acknowledgeAsync(id, txn).whenComplete((done, error) ->
                    history.complete(op, error == null ? "ok" : "info", error == null ? of() : of("error", nameOf(error))));
        }

        private JsonNode delivered(Message<byte[]> message) {
            JsonNode payload;
            try {
                payload = JSON.readTree(message.getData());
            } catch (IOException error) {
                throw new IllegalStateException(error);
            }
            history.event("deliver", with(source, "reader", null, "position", position(message.getMessageId()), "payload", payload,
                    "redeliveries", message.getRedeliveryCount()));
            return payload;
        }
    }

    static List<Long> position(MessageId id) {
        MessageIdAdv at = (MessageIdAdv) id;
        return List.of(at.getLedgerId(), at.getEntryId(), (long) at.getBatchIndex());
    }

    static long crc(Map<String, Object> payload) {
        CRC32 crc = new CRC32();
        crc.update(bytes(new TreeMap<>(payload)));
        return crc.getValue();
    }

    static byte[] bytes(Object value) {
        try {
            return JSON.writeValueAsBytes(value);
        } catch (IOException error) {
            throw new IllegalStateException(error);
        }
    }

    static Map<String, Object> of(Object... pairs) {
        return with(Map.of(), pairs);
    }

    static Map<String, Object> with(Map<String, Object> first, Object... pairs) {
        Map<String, Object> found = new LinkedHashMap<>(first);
        for (int number = 0; number < pairs.length; number += 2) {
            found.put((String) pairs[number], pairs[number + 1]);
        }
        return found;
    }

    static String nameOf(Throwable error) {
        while ((error instanceof ExecutionException || error instanceof CompletionException) && error.getCause() != null) {
            error = error.getCause();
        }
        return error.getClass().getSimpleName() + ": " + error.getMessage();
    }

    static void told(Throwable error) {
        System.err.println(nameOf(error));
    }

    static void pause(long milliseconds) {
        try {
            Thread.sleep(milliseconds);
        } catch (InterruptedException error) {
            throw new IllegalStateException(error);
        }
    }

    static JsonNode named(JsonNode all, String name) {
        for (JsonNode each : all) {
            if (each.get("name").asText().equals(name)) {
                return each;
            }
        }
        throw new IllegalArgumentException(name);
    }

    /** A client, which asks for the coordinators at once: the broker may be away. */
    static PulsarClient connected(String url) {
        while (true) {
            try {
                return PulsarClient.builder().serviceUrl(url).enableTransaction(true).operationTimeout(10, TimeUnit.SECONDS)
                        .maxBackoffInterval(1, TimeUnit.SECONDS).build();
            } catch (PulsarClientException error) {
                told(error);
                pause(AGAIN_MS);
            }
        }
    }

    public static void main(String[] args) throws Exception {
        sun.misc.Signal.handle(new sun.misc.Signal("TERM"), signal -> stopped = true);
        Thread.setDefaultUncaughtExceptionHandler((thread, error) -> {  // a mistake in this program
            error.printStackTrace();
            Runtime.getRuntime().halt(1);
        });
        JsonNode phase = JSON.readTree(new File(args[0]));
        JsonNode worker = named(phase.get("workers"), args[1]);
        History history = new History(args[3], args[1] + "." + args[2]);
        try (PulsarClient client = connected(args[4])) {
            List<Thread> threads = new ArrayList<>();
            for (JsonNode hop : named(phase.get("chains"), worker.get("chain").asText()).get("hops")) {
                Thread thread = new Thread(new Hop(client, history, hop, worker.get("seed").asLong() * 31 + threads.size() + args[2].hashCode()));
                threads.add(thread);
                thread.start();
            }
            for (Thread thread : threads) {
                thread.join();
            }
        }
        history.complete(history.invoke("close", of()), "ok", of());
        System.exit(0);
    }
}
