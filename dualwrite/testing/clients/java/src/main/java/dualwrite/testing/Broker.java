package dualwrite.testing;

import java.io.BufferedReader;
import java.io.IOException;
import java.io.InputStreamReader;
import java.net.URI;
import java.net.URLEncoder;
import java.net.http.HttpClient;
import java.net.http.HttpRequest;
import java.net.http.HttpResponse;
import java.nio.charset.StandardCharsets;
import java.time.Duration;
import java.util.ArrayList;
import java.util.Base64;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.concurrent.TimeUnit;

/**
 * A Kafka broker for tests: dualwrite's broker emulator in a process of its own, or one that runs already.
 *
 * <p>{@code try (Broker broker = Broker.options().topic("orders", 3).start())} starts and stops it. All methods may be
 * called from any thread.
 */
public final class Broker implements AutoCloseable {
    private static final Duration REQUEST_TIMEOUT = Duration.ofSeconds(90);
    private static final long STOP_TIMEOUT_S = 20;

    private final HttpClient http = HttpClient.newBuilder().version(HttpClient.Version.HTTP_1_1).build();
    private final String controlUrl;
    private final String bootstrapServers;
    private final Process process;

    private Broker(String controlUrl, Process process) {
        this.controlUrl = controlUrl.endsWith("/") ? controlUrl.substring(0, controlUrl.length() - 1) : controlUrl;
        this.process = process;
        this.bootstrapServers = (String) ((Map<?, ?>) request("GET", "/v1/health", null)).get("bootstrap_servers");
    }

    /** How a broker is started. */
    public static Options options() {
        return new Options();
    }

    /** Use a broker that runs, by the URL of its control port; {@link #close} leaves it running. */
    public static Broker connect(String controlUrl) {
        return new Broker(controlUrl, null);
    }

    /** The address for {@code bootstrap.servers}. */
    public String bootstrapServers() {
        return bootstrapServers;
    }

    /** The URL of the control port, which also has a page for people. */
    public String controlUrl() {
        return controlUrl;
    }

    /** Create a topic; others are created at their first use. */
    public void createTopic(String name, int partitions) {
        request("POST", "/v1/topics", Map.of("name", name, "partitions", partitions));
    }

    /** The records of a topic that a consumer with read_committed gets; none of a topic that was never used. */
    public List<BrokerRecord> records(String topic) {
        return records(topic, true);
    }

    /** The records of a topic: with {@code readCommitted} up to the last stable offset, without aborted ones. */
    public List<BrokerRecord> records(String topic, boolean readCommitted) {
        String query = "?encoding=base64&limit=10000&isolation=" + (readCommitted ? "read_committed" : "read_uncommitted");
        Object answer = request("GET", "/v1/topics/" + encoded(topic) + "/records" + query, null);
        List<BrokerRecord> records = new ArrayList<>();
        for (Object each : (List<?>) ((Map<?, ?>) answer).get("records")) {
            records.add(record((Map<?, ?>) each));
        }
        return records;
    }

    /** Put a fault on the next requests of an API: {@code addFault("EndTxn", "DropReply")}. */
    public Fault addFault(String api, String action) {
        return addFault(Map.of("api", api, "action", Map.of("type", action)));
    }

    /** Put a fault in place, with every selector of the endpoint {@code POST /v1/faults}. */
    public Fault addFault(Map<String, ?> fault) {
        return new Fault(this, Fault.number(request("POST", "/v1/faults", fault), "fault_id"));
    }

    /** Hold a pause point of the coordinator, such as {@code before-marker}. */
    public Hold hold(String point) {
        return new Hold(this, Fault.number(request("POST", "/v1/holds", Map.of("point", point)), "hold_id"));
    }

    /** Advance the broker's time; needs {@link Options#virtualClock}. */
    public void advanceClock(Duration duration) {
        request("POST", "/v1/clock/advance", Map.of("duration_ms", duration.toMillis()));
    }

    /** For the next test: no records, faults, held points, open transactions and idle groups. */
    public void reset() {
        request("POST", "/v1/reset", null);
    }

    /**
     * Send any request of the control port, and return its JSON as maps, lists, strings, numbers and booleans.
     *
     * @throws BrokerException if the broker refuses it or cannot be reached
     */
    public Object request(String method, String path, Object body) {
        HttpRequest.Builder request = HttpRequest.newBuilder(URI.create(controlUrl + path)).timeout(REQUEST_TIMEOUT);
        if (body == null) {
            request.method(method, HttpRequest.BodyPublishers.noBody());
        } else {
            request.header("Content-Type", "application/json");
            request.method(method, HttpRequest.BodyPublishers.ofString(Json.write(body)));
        }
        HttpResponse<String> response = sent(request.build());
        Object content = Json.read(response.body());
        if (response.statusCode() >= 400) {
            Map<?, ?> error = (Map<?, ?>) ((Map<?, ?>) content).get("error");
            throw new BrokerException((String) error.get("code"), (String) error.get("message"), null);
        }
        return content;
    }

    private HttpResponse<String> sent(HttpRequest request) {
        try {
            return http.send(request, HttpResponse.BodyHandlers.ofString());
        } catch (IOException error) {
            throw new BrokerException("", "the broker at " + controlUrl + " cannot be reached: " + error, error);
        } catch (InterruptedException error) {
            Thread.currentThread().interrupt();
            throw new BrokerException("", "interrupted while the broker was asked for " + request.uri(), error);
        }
    }

    /** End the broker that was started; one that was connected to goes on. */
    @Override
    public void close() {
        if (process == null) {
            return;
        }
        try {
            process.getOutputStream().close();
            if (!process.waitFor(STOP_TIMEOUT_S, TimeUnit.SECONDS)) {
                process.destroyForcibly();
            }
        } catch (IOException error) {
            process.destroyForcibly();
        } catch (InterruptedException error) {
            process.destroyForcibly();
            Thread.currentThread().interrupt();
        }
    }

    private static BrokerRecord record(Map<?, ?> read) {
        List<BrokerRecord.Header> headers = new ArrayList<>();
        for (Object each : (List<?>) read.get("headers")) {
            Map<?, ?> header = (Map<?, ?>) each;
            headers.add(new BrokerRecord.Header((String) header.get("key"), bytes(header.get("value"))));
        }
        return new BrokerRecord(
                (int) Fault.number(read, "partition"),
                Fault.number(read, "offset"),
                Fault.number(read, "timestamp_ms"),
                bytes(read.get("key")),
                bytes(read.get("value")),
                List.copyOf(headers),
                (String) read.get("transaction"));
    }

    private static byte[] bytes(Object text) {
        return text == null ? null : Base64.getDecoder().decode((String) text);
    }

    private static String encoded(String text) {
        return URLEncoder.encode(text, StandardCharsets.UTF_8).replace("+", "%20");
    }

    /** How a broker is started; every method returns this object. */
    public static final class Options {
        private final Map<String, Integer> topics = new LinkedHashMap<>();
        private final Map<String, String> config = new LinkedHashMap<>();
        private int nodes = 1;
        private String clock = "system";
        private List<String> command = commandOfEnvironment();

        private Options() {}

        /** Create a topic before the first client connects. */
        public Options topic(String name, int partitions) {
            topics.put(name, partitions);
            return this;
        }

        /** A setting by Kafka's name. */
        public Options config(String name, String value) {
            config.put(name, value);
            return this;
        }

        /** How many brokers there are. */
        public Options nodes(int count) {
            nodes = count;
            return this;
        }

        /** Let the broker's time stand still until {@link Broker#advanceClock}. */
        public Options virtualClock() {
            clock = "virtual";
            return this;
        }

        /** How the emulator is started; by default DUALWRITE_BROKER_COMMAND, or {@code dualwrite broker}. */
        public Options command(String... command) {
            this.command = List.of(command);
            return this;
        }

        /**
         * Start it; the process ends with this one at the latest.
         *
         * @throws BrokerException if it does not start, with what it said
         */
        public Broker start() {
            List<String> all = new ArrayList<>(command);
            all.addAll(List.of("--control", "127.0.0.1:0", "--stop-with-stdin", "--clock", clock));
            all.addAll(List.of("--nodes", String.valueOf(nodes)));
            topics.forEach((name, partitions) -> all.addAll(List.of("--topic", name + ":" + partitions)));
            config.forEach((name, value) -> all.addAll(List.of("--config", name + "=" + value)));
            try {
                Process process = new ProcessBuilder(all).redirectError(ProcessBuilder.Redirect.INHERIT).start();
                return connected(process);
            } catch (IOException error) {
                throw new BrokerException(
                        "",
                        "the broker cannot be started: " + error.getMessage() + "; pip install 'dualwrite[emulator,cli]', or"
                                + " say in DUALWRITE_BROKER_COMMAND how it is started",
                        error);
            }
        }

        private Broker connected(Process process) throws IOException {
            BufferedReader lines =
                    new BufferedReader(new InputStreamReader(process.getInputStream(), StandardCharsets.UTF_8));
            lines.readLine();
            String controlUrl = lines.readLine();
            if (controlUrl == null) {
                process.destroyForcibly();
                throw new BrokerException(
                        "", String.join(" ", command) + " ended before it served; standard error says why", null);
            }
            try {
                return new Broker(controlUrl, process);
            } catch (BrokerException error) {
                process.destroyForcibly();
                throw error;
            }
        }

        private static List<String> commandOfEnvironment() {
            String given = System.getenv("DUALWRITE_BROKER_COMMAND");
            return given == null || given.isBlank() ? List.of("dualwrite", "broker") : List.of(given.trim().split(" +"));
        }
    }
}
