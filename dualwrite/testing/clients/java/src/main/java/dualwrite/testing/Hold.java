package dualwrite.testing;

import java.time.Duration;

/** A pause point of the coordinator that is held. */
public final class Hold {
    private final Broker broker;
    private final String path;

    Hold(Broker broker, long id) {
        this.broker = broker;
        this.path = "/v1/holds/" + id;
    }

    /** Wait until the point was reached. */
    public void awaitReached(Duration timeout) {
        broker.request("GET", path + "/wait?timeout_ms=" + timeout.toMillis(), null);
    }

    /** Let everything pass, now and later. */
    public void release() {
        broker.request("POST", path + "/release", null);
    }
}
