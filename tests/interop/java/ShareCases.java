import com.fasterxml.jackson.databind.ObjectMapper;
import java.time.Duration;
import java.util.ArrayList;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.Properties;
import java.util.TreeMap;
import java.util.concurrent.ExecutionException;
import org.apache.kafka.clients.admin.Admin;
import org.apache.kafka.clients.admin.ListShareGroupOffsetsSpec;
import org.apache.kafka.clients.admin.ShareGroupDescription;
import org.apache.kafka.clients.admin.SharePartitionOffsetInfo;
import org.apache.kafka.clients.consumer.AcknowledgeType;
import org.apache.kafka.clients.consumer.ConsumerRecord;
import org.apache.kafka.clients.consumer.KafkaShareConsumer;
import org.apache.kafka.clients.producer.KafkaProducer;
import org.apache.kafka.clients.producer.ProducerRecord;
import org.apache.kafka.common.KafkaFuture;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.serialization.StringDeserializer;
import org.apache.kafka.common.serialization.StringSerializer;

/**
 * What members of a share group do, and what Admin says of the group.
 *
 * <p>Arguments: the case, the bootstrap servers, the group, the topic, and what else the case takes. Each case writes
 * one line of JSON. The records' values are numbers.
 */
public final class ShareCases {
    private static final ObjectMapper JSON = new ObjectMapper();
    private static final Duration POLL = Duration.ofMillis(200);
    private static final long PATIENCE_MS = 60_000;
    private static final String END = "end";

    private final String servers;
    private final String group;
    private final String topic;

    private ShareCases(String servers, String group, String topic) {
        this.servers = servers;
        this.group = group;
        this.topic = topic;
    }

    public static void main(String[] arguments) throws Exception {
        ShareCases cases = new ShareCases(arguments[1], arguments[2], arguments[3]);
        Object result;
        switch (arguments[0]) {
            case "explicit":
                result = cases.explicit(Integer.parseInt(arguments[4]));
                break;
            case "implicit":
                result = cases.implicit(arguments[4]);
                break;
            case "hold":
                result = cases.hold(Integer.parseInt(arguments[4]));
                break;
            case "admin":
                result = cases.admin();
                break;
            default:
                throw new IllegalArgumentException(arguments[0]);
        }
        System.out.println(JSON.writeValueAsString(result));
    }

    private KafkaShareConsumer<String, String> member(String acknowledgementMode) {
        Properties settings = new Properties();
        settings.put("bootstrap.servers", servers);
        settings.put("group.id", group);
        settings.put("share.acknowledgement.mode", acknowledgementMode);
        settings.put("max.poll.records", "4");
        KafkaShareConsumer<String, String> member =
                new KafkaShareConsumer<>(settings, new StringDeserializer(), new StringDeserializer());
        member.subscribe(List.of(topic));
        return member;
    }

    /**
     * Two members acknowledge by the number in the record: 0 is accepted, 1 released once, 2 rejected, and 3 released
     * each time (all modulo 4). After so many deliveries a last record is written: nothing else comes before it.
     * Returns the delivery counts of each record.
     */
    private Map<String, List<Integer>> explicit(int deliveries) throws Exception {
        Map<String, List<Integer>> seen = new TreeMap<>();
        int left = deliveries;
        long deadline = System.currentTimeMillis() + PATIENCE_MS;
        try (KafkaShareConsumer<String, String> first = member("explicit");
                KafkaShareConsumer<String, String> second = member("explicit")) {
            while (!seen.containsKey(END) && System.currentTimeMillis() < deadline) {
                for (KafkaShareConsumer<String, String> member : List.of(first, second)) {
                    for (ConsumerRecord<String, String> record : member.poll(POLL)) {
                        int count = record.deliveryCount().orElseThrow();
                        seen.computeIfAbsent(record.value(), value -> new ArrayList<>()).add(count);
                        member.acknowledge(record, typeOf(record.value(), count));
                        left--;
                    }
                    commit(member);
                    if (left == 0) {
                        write(END);
                        left--;
                    }
                }
            }
        }
        return seen;
    }

    private static AcknowledgeType typeOf(String value, int count) {
        switch (value.equals(END) ? 0 : Integer.parseInt(value) % 4) {
            case 0:
                return AcknowledgeType.ACCEPT;
            case 1:
                return count == 1 ? AcknowledgeType.RELEASE : AcknowledgeType.ACCEPT;
            case 2:
                return AcknowledgeType.REJECT;
            default:
                return AcknowledgeType.RELEASE;
        }
    }

    private static void commit(KafkaShareConsumer<String, String> member) {
        member.commitSync().values().forEach(failure -> failure.ifPresent(error -> {
            throw error;
        }));
    }

    private void write(String value) throws Exception {
        Properties settings = new Properties();
        settings.put("bootstrap.servers", servers);
        try (KafkaProducer<String, String> producer =
                new KafkaProducer<>(settings, new StringSerializer(), new StringSerializer())) {
            producer.send(new ProducerRecord<>(topic, value)).get();
        }
    }

    /** Reads until a record has this value. Returns values and delivery counts. */
    private List<List<Object>> implicit(String last) {
        List<List<Object>> seen = new ArrayList<>();
        long deadline = System.currentTimeMillis() + PATIENCE_MS;
        boolean isOver = false;
        try (KafkaShareConsumer<String, String> member = member("implicit")) {
            while (!isOver && System.currentTimeMillis() < deadline) {
                for (ConsumerRecord<String, String> record : member.poll(POLL)) {
                    seen.add(List.of(record.value(), (int) record.deliveryCount().orElseThrow()));
                    isOver |= record.value().equals(last);
                }
            }
            commit(member);
        }
        return seen;
    }

    /** Acquires records, says so, and neither acknowledges them nor ends. */
    private Object hold(int count) throws Exception {
        List<String> seen = new ArrayList<>();
        KafkaShareConsumer<String, String> member = member("explicit");
        while (seen.size() < count) {
            for (ConsumerRecord<String, String> record : member.poll(POLL)) {
                seen.add(record.value());
            }
        }
        System.out.println(JSON.writeValueAsString(seen));
        Thread.sleep(Long.MAX_VALUE);
        return seen;
    }

    /** Describes the group while it has a member and when it has none; looks at, moves and deletes its offsets. */
    private Map<String, Object> admin() throws Exception {
        Map<String, Object> said = new LinkedHashMap<>();
        TopicPartition partition = new TopicPartition(topic, 0);
        try (Admin admin = Admin.create(Map.of("bootstrap.servers", servers))) {
            try (KafkaShareConsumer<String, String> member = member("implicit")) {
                int left = 3;
                while (left > 0) {
                    left -= member.poll(POLL).count();
                }
                commit(member);
                ShareGroupDescription described = described(admin);
                said.put("state", described.groupState().toString());
                said.put("assignment", described.members().iterator().next().assignment().topicPartitions().toString());
                said.put("alter with a member", result(admin.alterShareGroupOffsets(group, Map.of(partition, 1L)).all()));
                said.put("delete offsets with a member", result(admin.deleteShareGroupOffsets(group, java.util.Set.of(topic)).all()));
                said.put("delete with a member", result(admin.deleteShareGroups(List.of(group)).all()));
            }
            said.put("state after", described(admin).groupState().toString());
            said.put("offset", offset(admin, partition));
            said.put("alter", result(admin.alterShareGroupOffsets(group, Map.of(partition, 1L)).all()));
            said.put("offset altered", offset(admin, partition));
            said.put("alter of no topic", result(admin.alterShareGroupOffsets(group, Map.of(new TopicPartition("no-such", 0), 1L)).all()));
            said.put("delete offsets of no topic", result(admin.deleteShareGroupOffsets(group, java.util.Set.of("no-such")).all()));
            said.put("delete offsets", result(admin.deleteShareGroupOffsets(group, java.util.Set.of(topic)).all()));
            said.put("offset deleted", offset(admin, partition));
            said.put("delete", result(admin.deleteShareGroups(List.of(group)).all()));
            said.put("delete again", result(admin.deleteShareGroups(List.of(group)).all()));
            said.put("describe deleted", result(admin.describeShareGroups(List.of(group)).all()));
        }
        return said;
    }

    private ShareGroupDescription described(Admin admin) throws Exception {
        return admin.describeShareGroups(List.of(group)).all().get().get(group);
    }

    private String offset(Admin admin, TopicPartition partition) throws Exception {
        SharePartitionOffsetInfo found = admin.listShareGroupOffsets(Map.of(group, new ListShareGroupOffsetsSpec()))
                .partitionsToOffsetInfo(group)
                .get()
                .get(partition);
        return found == null ? "none" : found.startOffset() + ", lag " + found.lag().map(String::valueOf).orElse("unknown");
    }

    private static String result(KafkaFuture<?> future) throws InterruptedException {
        try {
            future.get();
            return "done";
        } catch (ExecutionException failure) {
            return failure.getCause().getClass().getSimpleName() + ": " + failure.getCause().getMessage();
        }
    }
}
