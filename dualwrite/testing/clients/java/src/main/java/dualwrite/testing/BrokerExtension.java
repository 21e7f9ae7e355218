package dualwrite.testing;

import java.util.function.UnaryOperator;
import org.junit.jupiter.api.extension.AfterAllCallback;
import org.junit.jupiter.api.extension.BeforeAllCallback;
import org.junit.jupiter.api.extension.BeforeEachCallback;
import org.junit.jupiter.api.extension.ExtensionContext;
import org.junit.jupiter.api.extension.ParameterContext;
import org.junit.jupiter.api.extension.ParameterResolver;

/**
 * A broker for the tests of a class, reset before each of them.
 *
 * <p>{@code @ExtendWith(BrokerExtension.class)}, or with options {@code @RegisterExtension static final BrokerExtension
 * KAFKA = new BrokerExtension(options -> options.virtualClock())}. Tests take a parameter {@link Broker}.
 */
public final class BrokerExtension
        implements BeforeAllCallback, BeforeEachCallback, AfterAllCallback, ParameterResolver {
    private final UnaryOperator<Broker.Options> configured;
    private Broker broker;
    private String owner;

    /** A broker with the default options. */
    public BrokerExtension() {
        this(UnaryOperator.identity());
    }

    /** A broker with these options. */
    public BrokerExtension(UnaryOperator<Broker.Options> configured) {
        this.configured = configured;
    }

    /** The broker, while tests of the class run. */
    public Broker broker() {
        if (broker == null) {
            throw new IllegalStateException("the broker runs from @BeforeAll to @AfterAll; make the extension static");
        }
        return broker;
    }

    @Override
    public void beforeAll(ExtensionContext context) {
        if (broker == null) { // a nested class uses that of the class around it
            broker = configured.apply(Broker.options()).start();
            owner = context.getUniqueId();
        }
    }

    @Override
    public void beforeEach(ExtensionContext context) {
        broker().reset();
    }

    @Override
    public void afterAll(ExtensionContext context) {
        if (broker != null && context.getUniqueId().equals(owner)) {
            broker.close();
            broker = null;
        }
    }

    @Override
    public boolean supportsParameter(ParameterContext parameter, ExtensionContext context) {
        return parameter.getParameter().getType() == Broker.class;
    }

    @Override
    public Object resolveParameter(ParameterContext parameter, ExtensionContext context) {
        return broker();
    }
}
