package orders;

import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertThrows;
import static org.junit.jupiter.api.Assertions.assertTrue;

import dualwrite.testing.Broker;
import dualwrite.testing.BrokerException;
import dualwrite.testing.BrokerExtension;
import dualwrite.testing.BrokerRecord;
import dualwrite.testing.Fault;
import dualwrite.testing.Hold;
import java.time.Duration;
import java.util.List;
import java.util.Map;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.TimeUnit;
import org.apache.kafka.clients.producer.KafkaProducer;
import org.apache.kafka.clients.producer.ProducerRecord;
import org.apache.kafka.common.serialization.StringSerializer;
import org.junit.jupiter.api.Nested;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.api.extension.RegisterExtension;

class OrdersTest {
    private static final Duration PATIENCE = Duration.ofSeconds(30);

    @RegisterExtension
    static final BrokerExtension KAFKA = new BrokerExtension(options -> options.topic("orders", 1).virtualClock());

    private static KafkaProducer<String, String> producer(Broker broker, String transactionalId) {
        Map<String, Object> settings =
                Map.of("bootstrap.servers", broker.bootstrapServers(), "transactional.id", transactionalId);
        KafkaProducer<String, String> producer =
                new KafkaProducer<>(settings, new StringSerializer(), new StringSerializer());
        producer.initTransactions();
        producer.beginTransaction();
        return producer;
    }

    private static List<String> values(List<BrokerRecord> records) {
        return records.stream().map(BrokerRecord::valueText).toList();
    }

    @Test
    void anOrderIsPublishedOnceItIsCommitted(Broker broker) {
        try (var producer = producer(broker, "shop")) {
            producer.send(new ProducerRecord<>("orders", "7", "lamp"));
            producer.flush();
            assertEquals(List.of(), broker.records("orders"));
            assertEquals(List.of("lamp"), values(broker.records("orders", false)));
            producer.commitTransaction();
        }
        BrokerRecord record = broker.records("orders").get(0);
        assertEquals("7", record.keyText());
        assertEquals("committed", record.transaction());
    }

    @Test
    void testsSeeNothingOfEachOther(Broker broker) {
        assertEquals(List.of(), broker.records("orders", false));
        assertEquals(List.of(), broker.records("never-used"));
    }

    @Test
    void aCommitIsHeldAndSeenAfterItsRelease(Broker broker) throws Exception {
        Fault held = broker.addFault("EndTxn", "Hold");
        try (var producer = producer(broker, "held")) {
            producer.send(new ProducerRecord<>("orders", "shade"));
            CompletableFuture<Void> commit = CompletableFuture.runAsync(producer::commitTransaction);
            held.awaitHeld(1, PATIENCE);
            assertEquals(List.of(), broker.records("orders"));
            held.release();
            commit.get(30, TimeUnit.SECONDS);
        }
        assertEquals(List.of("shade"), values(broker.records("orders")));
        assertEquals(1, held.hits());
    }

    @Test
    void anAbandonedTransactionIsAborted(Broker broker) {
        try (var producer = producer(broker, "abandoned")) {
            producer.send(new ProducerRecord<>("orders", "never"));
            producer.flush();
            Hold hold = broker.hold("before-marker");
            broker.advanceClock(Duration.ofSeconds(70));
            hold.awaitReached(PATIENCE);
            assertEquals("open", broker.records("orders", false).get(0).transaction());
            hold.release();
        }
        while (isAnyOpen(broker)) {
            Thread.onSpinWait(); // the broker writes markers in its own time
        }
        assertEquals(List.of(), broker.records("orders"));
        assertEquals("aborted", broker.records("orders", false).get(0).transaction());
    }

    private static boolean isAnyOpen(Broker broker) {
        Map<?, ?> answer = (Map<?, ?>) broker.request("GET", "/v1/transactions?open=true", null);
        return !((List<?>) answer.get("transactions")).isEmpty();
    }

    @Test
    void aMistakeSaysWhatWouldBeRight(Broker broker) {
        BrokerException refused = assertThrows(BrokerException.class, () -> broker.addFault("EndTx", "Hold"));
        assertEquals("bad-request", refused.code());
        assertTrue(refused.getMessage().contains("EndTxn"), refused.getMessage());
        BrokerException missing =
                assertThrows(BrokerException.class, () -> Broker.options().command("no-such-program").start());
        assertTrue(missing.getMessage().contains("pip install"), missing.getMessage());
    }

    @Test
    void aBrokerThatRunsCanBeUsedToo(Broker broker) {
        try (Broker other = Broker.connect(broker.controlUrl())) {
            other.createTopic("more", 3);
            assertEquals(broker.bootstrapServers(), other.bootstrapServers());
        }
        broker.reset();
    }

    @Nested
    class InANestedClass {
        @Test
        void theBrokerIsTheSame(Broker broker) {
            assertEquals(KAFKA.broker(), broker);
            broker.reset();
        }
    }
}
