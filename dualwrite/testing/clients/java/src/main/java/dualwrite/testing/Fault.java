package dualwrite.testing;

import java.time.Duration;
import java.util.Map;

/** A fault that was put in place. */
public final class Fault {
    private final Broker broker;
    private final String path;

    Fault(Broker broker, long id) {
        this.broker = broker;
        this.path = "/v1/faults/" + id;
    }

    /** How many requests were hit. */
    public long hits() {
        return number(broker.request("GET", path, null), "hits");
    }

    /** Wait until this many requests were hit. */
    public void awaitHits(int hits, Duration timeout) {
        await("hits", hits, timeout);
    }

    /** Wait until this many requests are held. */
    public void awaitHeld(int held, Duration timeout) {
        await("held", held, timeout);
    }

    /** Release everything that is held now. */
    public void release() {
        broker.request("POST", path + "/release", null);
    }

    /** Remove the fault, and release everything that it holds. */
    public void remove() {
        broker.request("DELETE", path, null);
    }

    private void await(String what, int count, Duration timeout) {
        broker.request("GET", path + "/wait?" + what + "=" + count + "&timeout_ms=" + timeout.toMillis(), null);
    }

    static long number(Object object, String name) {
        return ((Number) ((Map<?, ?>) object).get(name)).longValue();
    }
}
