import java.sql.Time;
import java.sql.Timestamp;
import java.time.Instant;
import java.time.LocalDate;
import java.time.LocalDateTime;
import java.time.LocalTime;
import java.util.Date;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.concurrent.TimeUnit;
import org.apache.pulsar.client.api.Consumer;
import org.apache.pulsar.client.api.Message;
import org.apache.pulsar.client.api.Producer;
import org.apache.pulsar.client.api.PulsarClient;
import org.apache.pulsar.client.api.Schema;
import org.apache.pulsar.client.api.SubscriptionInitialPosition;
import org.apache.pulsar.common.schema.KeyValue;
import org.apache.pulsar.common.schema.KeyValueEncodingType;

/**
 * Java's side of the tests of typed rows. `SchemaProbe URL send TOPIC` sends one value to a topic per schema, TOPIC-name;
 * `SchemaProbe URL read TOPIC` prints the first value of each.
 */
public class SchemaProbe {
    public static class Leg {
        public String stop;
        public int minutes;
    }

    public enum Kind { FIRST, SECOND }

    public static class Flight {
        public String carrier;
        public long cents;
        public Double ratio;
        public Kind kind;
        public List<Leg> legs;
        public Map<String, Integer> tags;
        public byte[] raw;

        @Override
        public String toString() {
            return carrier + " " + cents + " " + ratio + " " + kind + " " + legs.get(0).stop + " " + legs.get(0).minutes + " " + tags
                    + " " + raw.length + " " + raw[0];
        }
    }

    static Flight flight() {
        Flight flight = new Flight();
        flight.carrier = "zwölf";
        flight.cents = 1L << 40;
        flight.ratio = 0.5;
        flight.kind = Kind.SECOND;
        Leg leg = new Leg();
        leg.stop = "JFK";
        leg.minutes = 7;
        flight.legs = List.of(leg);
        flight.tags = Map.of("x", 1);
        flight.raw = new byte[] {-1, 0};
        return flight;
    }

    static final Instant AT = Instant.ofEpochSecond(1767323045L, 678901000);

    static Map<String, Schema<?>> schemas() {
        Map<String, Schema<?>> all = new LinkedHashMap<>();
        all.put("string", Schema.STRING);
        all.put("boolean", Schema.BOOL);
        all.put("int8", Schema.INT8);
        all.put("int16", Schema.INT16);
        all.put("int32", Schema.INT32);
        all.put("int64", Schema.INT64);
        all.put("float", Schema.FLOAT);
        all.put("double", Schema.DOUBLE);
        all.put("date", Schema.DATE);
        all.put("time", Schema.TIME);
        all.put("timestamp", Schema.TIMESTAMP);
        all.put("instant", Schema.INSTANT);
        all.put("local_date", Schema.LOCAL_DATE);
        all.put("local_time", Schema.LOCAL_TIME);
        all.put("local_date_time", Schema.LOCAL_DATE_TIME);
        all.put("avro", Schema.AVRO(Flight.class));
        all.put("json", Schema.JSON(Flight.class));
        all.put("inline", Schema.KeyValue(Schema.JSON(Leg.class), Schema.INT64, KeyValueEncodingType.INLINE));
        all.put("separated", Schema.KeyValue(Schema.INT32, Schema.AVRO(Flight.class), KeyValueEncodingType.SEPARATED));
        return all;
    }

    static Object value(String name) {
        Leg leg = flight().legs.get(0);
        switch (name) {
            case "string": return "zwölf";
            case "boolean": return true;
            case "int8": return (byte) -5;
            case "int16": return (short) -300;
            case "int32": return -70000;
            case "int64": return 1L << 40;
            case "float": return 1.5f;
            case "double": return 0.1;
            case "date": return new Date(AT.toEpochMilli());
            case "time": return new Time(AT.toEpochMilli());
            case "timestamp": return new Timestamp(AT.toEpochMilli());
            case "instant": return AT;
            case "local_date": return LocalDate.of(2026, 1, 2);
            case "local_time": return LocalTime.of(3, 4, 5, 678901000);
            case "local_date_time": return LocalDateTime.of(2026, 1, 2, 3, 4, 5, 678901000);
            case "inline": return new KeyValue<>(leg, 8L);
            case "separated": return new KeyValue<>(9, flight());
            default: return flight();
        }
    }

    static String shown(Object value) {
        if (value instanceof KeyValue) {
            KeyValue<?, ?> pair = (KeyValue<?, ?>) value;
            return shown(pair.getKey()) + " -> " + shown(pair.getValue());
        }
        if (value instanceof Leg) {
            return ((Leg) value).stop + " " + ((Leg) value).minutes;
        }
        return value instanceof Date ? String.valueOf(((Date) value).getTime()) : String.valueOf(value);
    }

    @SuppressWarnings("unchecked")
    static <T> void run(PulsarClient client, boolean sends, String topic, Schema<T> schema, String name) throws Exception {
        if (sends) {
            try (Producer<T> producer = client.newProducer(schema).topic(topic).create()) {
                producer.send((T) value(name));
            }
            return;
        }
        try (Consumer<T> consumer = client.newConsumer(schema).topic(topic).subscriptionName("java")
                .subscriptionInitialPosition(SubscriptionInitialPosition.Earliest).subscribe()) {
            String expected = shown(value(name));
            for (int count = 0; count < 2; count++) {
                Message<T> message = consumer.receive(20, TimeUnit.SECONDS);
                String found = shown(message.getValue());
                System.out.println(name + (found.equals(expected) ? " ok" : " " + found + " instead of " + expected));
            }
        }
    }

    public static void main(String[] args) throws Exception {
        try (PulsarClient client = PulsarClient.builder().serviceUrl(args[0]).build()) {
            for (Map.Entry<String, Schema<?>> each : schemas().entrySet()) {
                run(client, args[1].equals("send"), args[2] + "-" + each.getKey(), each.getValue(), each.getKey());
            }
        }
    }
}
