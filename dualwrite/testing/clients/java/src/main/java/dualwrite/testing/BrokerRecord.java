package dualwrite.testing;

import java.nio.charset.StandardCharsets;
import java.util.List;

/** A record as a consumer gets it; key and value may be null. */
public record BrokerRecord(
        int partition, long offset, long timestampMs, byte[] key, byte[] value, List<Header> headers, String transaction) {

    /** A header; its value may be null. */
    public record Header(String key, byte[] value) {}

    /** The key as UTF-8 text, or null. */
    public String keyText() {
        return key == null ? null : new String(key, StandardCharsets.UTF_8);
    }

    /** The value as UTF-8 text, or null. */
    public String valueText() {
        return value == null ? null : new String(value, StandardCharsets.UTF_8);
    }
}
