package dualwrite.testing;

/** What the broker has refused, or why it could not be started or reached. */
public final class BrokerException extends RuntimeException {
    private final String code;

    BrokerException(String code, String message, Throwable cause) {
        super(message, cause);
        this.code = code;
    }

    /** The kind of error, for programs, such as {@code not-reached}; empty if no broker has answered. */
    public String code() {
        return code;
    }
}
