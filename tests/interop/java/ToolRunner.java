import com.fasterxml.jackson.databind.JsonNode;
import com.fasterxml.jackson.databind.ObjectMapper;
import com.fasterxml.jackson.databind.node.ObjectNode;
import java.io.BufferedReader;
import java.io.ByteArrayInputStream;
import java.io.ByteArrayOutputStream;
import java.io.IOException;
import java.io.InputStream;
import java.io.InputStreamReader;
import java.io.OutputStream;
import java.io.PrintStream;
import java.lang.reflect.InvocationTargetException;
import java.nio.charset.StandardCharsets;
import java.util.List;
import java.util.Map;
import java.util.concurrent.ConcurrentHashMap;
import java.util.concurrent.CopyOnWriteArrayList;
import org.apache.kafka.common.utils.Exit;

/**
 * Runs Kafka's command-line tools in one JVM: a start of Java for each would take most of the tests' time.
 *
 * <p>One JSON object on a line of standard input starts a tool ({@code id, main, args, stdin}), or interrupts one as a
 * signal would ({@code id, stop}). When a tool is over, one line of standard output says {@code id, exit, out, err}.
 * Tools run side by side, each on a thread that has streams of its own.
 */
public final class ToolRunner {
    private static final ObjectMapper JSON = new ObjectMapper();
    private static final Map<Integer, Call> CALLS = new ConcurrentHashMap<>();
    private static final InheritableThreadLocal<Call> CURRENT = new InheritableThreadLocal<>();

    /** Ends a tool's thread where it would have ended its process. */
    private static final class ExitError extends Error {
        ExitError() {
            super("exit", null, false, false);
        }
    }

    private static final class Call {
        final ByteArrayOutputStream out = new ByteArrayOutputStream();
        final ByteArrayOutputStream err = new ByteArrayOutputStream();
        final List<Runnable> shutdownHooks = new CopyOnWriteArrayList<>();
        final InputStream in;
        Integer exitStatus;

        Call(String stdin) {
            in = new ByteArrayInputStream(stdin.getBytes(StandardCharsets.UTF_8));
        }

        /** The first status counts: a tool that catches everything exits once more because of {@link ExitError}. */
        synchronized void exit(int status) {
            if (exitStatus == null) {
                exitStatus = status;
            }
        }

        /** What a JVM runs when it ends: some tools send what they have only here. */
        void runShutdownHooks() {
            List<Runnable> hooks = List.copyOf(shutdownHooks);
            shutdownHooks.clear();
            hooks.forEach(Runnable::run);
        }
    }

    public static void main(String[] arguments) throws IOException {
        PrintStream answers = new PrintStream(System.out, true, StandardCharsets.UTF_8);
        PrintStream log = System.err;
        InputStream none = InputStream.nullInputStream();
        System.setOut(perCall(call -> call.out, answers));
        System.setErr(perCall(call -> call.err, log));
        BufferedReader requests = new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8));
        System.setIn(new InputStream() {
            private InputStream current() {
                return CURRENT.get() == null ? none : CURRENT.get().in;
            }

            @Override
            public int read() throws IOException {
                return current().read();
            }

            @Override
            public int read(byte[] into, int offset, int length) throws IOException {
                return current().read(into, offset, length);
            }
        });
        Exit.setExitProcedure((status, message) -> endCall(status));
        Exit.setHaltProcedure((status, message) -> endCall(status));
        Exit.setShutdownHookAdder((name, hook) -> CURRENT.get().shutdownHooks.add(hook));
        for (String line = requests.readLine(); line != null; line = requests.readLine()) {
            JsonNode request = JSON.readTree(line);
            int id = request.get("id").asInt();
            if (request.has("stop")) {
                Call stopped = CALLS.get(id);
                if (stopped != null) {
                    start("stop-" + id, stopped::runShutdownHooks);
                }
            } else {
                Call call = new Call(request.get("stdin").asText());
                CALLS.put(id, call);
                start("tool-" + id, () -> run(id, call, request, answers));
            }
        }
        Runtime.getRuntime().halt(0);
    }

    private static void run(int id, Call call, JsonNode request, PrintStream answers) {
        CURRENT.set(call);
        try {
            Class<?> tool = Class.forName(request.get("main").asText());
            String[] arguments = JSON.convertValue(request.get("args"), String[].class);
            tool.getMethod("main", String[].class).invoke(null, (Object) arguments);
            call.exit(0);
        } catch (InvocationTargetException failure) {
            if (!(failure.getCause() instanceof ExitError)) {
                failure.getCause().printStackTrace();
                call.exit(1);
            }
        } catch (ReflectiveOperationException failure) {
            failure.printStackTrace();
            call.exit(1);
        }
        call.runShutdownHooks();
        ObjectNode answer = JSON.createObjectNode().put("id", id).put("exit", call.exitStatus);
        answer.put("out", call.out.toString(StandardCharsets.UTF_8));
        answer.put("err", call.err.toString(StandardCharsets.UTF_8));
        CALLS.remove(id);
        synchronized (answers) {
            answers.println(answer);
        }
    }

    private static void endCall(int status) {
        Call call = CURRENT.get();
        if (call == null) {
            Runtime.getRuntime().halt(status);
        }
        call.exit(status);
        throw new ExitError();
    }

    private static void start(String name, Runnable task) {
        Thread thread = new Thread(task, name);
        thread.setDaemon(true);
        thread.start();
    }

    private interface StreamOf {
        OutputStream of(Call call);
    }

    private static PrintStream perCall(StreamOf stream, PrintStream otherwise) {
        return new PrintStream(
                new OutputStream() {
                    private OutputStream current() {
                        return CURRENT.get() == null ? otherwise : stream.of(CURRENT.get());
                    }

                    @Override
                    public void write(int character) throws IOException {
                        current().write(character);
                    }

                    @Override
                    public void write(byte[] bytes, int offset, int length) throws IOException {
                        current().write(bytes, offset, length);
                    }
                },
                true,
                StandardCharsets.UTF_8);
    }
}
