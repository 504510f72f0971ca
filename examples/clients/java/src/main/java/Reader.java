import com.google.api.gax.core.NoCredentialsProvider;
import com.google.cloud.pubsub.v1.AckReplyConsumerWithResponse;
import com.google.cloud.pubsub.v1.AckResponse;
import com.google.cloud.pubsub.v1.MessageReceiverWithAckResponse;
import com.google.cloud.pubsub.v1.Subscriber;
import com.google.cloud.pubsub.v1.SubscriptionAdminSettings;
import com.google.pubsub.v1.ProjectSubscriptionName;
import com.google.pubsub.v1.PubsubMessage;
import io.grpc.ManagedChannelBuilder;
import java.io.IOException;
import java.io.UncheckedIOException;
import java.nio.file.Files;
import java.nio.file.Path;
import java.nio.file.StandardOpenOption;
import java.time.Duration;
import java.time.Instant;
import java.util.HashMap;
import java.util.Map;
import java.util.Random;
import java.util.concurrent.ExecutionException;
import java.util.concurrent.Executors;
import java.util.concurrent.ScheduledExecutorService;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.TimeoutException;
import java.util.concurrent.atomic.AtomicInteger;

/**
 * Reads a subscription by the client's streaming pull, as a service of somebody's own would: it holds each message for a
 * random moment, gives some back, pauses now and then, crashes if asked to, and acknowledges the rest.
 *
 * <p>Before it acknowledges a message it appends a line "sending", and a line "confirmed" when the client says that the
 * acknowledgement is done: moment, what, message id, publish time, event time. So a crash loses no acknowledgement from
 * the record. It ends after so many acknowledgements or so many seconds. Arguments are -name value:
 * project, subscription, record, messages, seconds, hold-ms, nack (a share), pause-every and pause-for (seconds),
 * crash-after (acknowledgements), except (the id of a message that is never acknowledged), event-time (an attribute).
 */
public final class Reader {
  private final Map<String, String> options;
  private final Instant began = Instant.now();
  private final Random random = new Random();
  private final ScheduledExecutorService later = Executors.newScheduledThreadPool(32);
  private final AtomicInteger acknowledged = new AtomicInteger();

  private Reader(Map<String, String> options) {
    this.options = options;
  }

  public static void main(String[] arguments) throws Exception {
    Map<String, String> options = new HashMap<>();
    for (int i = 0; i + 1 < arguments.length; i += 2) {
      options.put(arguments[i].substring(1), arguments[i + 1]);
    }
    new Reader(options).read();
    System.exit(0); // the client's threads would keep the process
  }

  private void read() throws InterruptedException {
    Instant until = Instant.now().plusMillis((long) (number("seconds", 60) * 1000));
    double messages = number("messages", 1e9);
    Subscriber subscriber = subscriber();
    subscriber.startAsync().awaitRunning();
    while (Instant.now().isBefore(until) && acknowledged.get() < messages) {
      Thread.sleep(50);
    }
    subscriber.stopAsync().awaitTerminated();
  }

  /** Whether it pauses now: nothing is acknowledged, as when a reader's own sink does not answer. */
  private boolean pauses() {
    double every = number("pause-every", 1e6);
    double seconds = Duration.between(began, Instant.now()).toMillis() / 1000.0;
    return seconds % (every + number("pause-for", 0)) > every;
  }

  private Subscriber subscriber() {
    MessageReceiverWithAckResponse receiver =
        (message, reply) ->
            later.schedule(
                () -> finish(message, reply),
                (long) (random.nextDouble() * number("hold-ms", 0)),
                TimeUnit.MILLISECONDS);
    Subscriber.Builder builder =
        Subscriber.newBuilder(
            ProjectSubscriptionName.of(options.get("project"), options.get("subscription")), receiver);
    builder.setMaxDurationPerAckExtensionDuration(Duration.ofSeconds(10)); // what a crash held comes again after it
    String emulator = System.getenv("PUBSUB_EMULATOR_HOST"); // the Java client does not look at it by itself
    if (emulator != null) {
      builder
          .setChannelProvider(
              SubscriptionAdminSettings.defaultGrpcTransportProviderBuilder()
                  .setEndpoint(emulator)
                  .setChannelConfigurator(ManagedChannelBuilder::usePlaintext)
                  .build())
          .setCredentialsProvider(NoCredentialsProvider.create());
    }
    return builder.build();
  }

  private void finish(PubsubMessage message, AckReplyConsumerWithResponse reply) {
    if (message.getMessageId().equals(options.get("except")) || random.nextDouble() < number("nack", 0)) {
      reply.nack();
      return;
    }
    try {
      while (pauses()) {
        Thread.sleep(50);
      }
      record("sending", message);
      if (reply.ack().get(10, TimeUnit.SECONDS) == AckResponse.SUCCESSFUL) {
        record("confirmed", message);
        if (acknowledged.incrementAndGet() == number("crash-after", 0)) {
          Runtime.getRuntime().halt(3); // as a crash: nothing is closed, nothing is given back
        }
      }
    } catch (InterruptedException | ExecutionException | TimeoutException e) {
      System.err.println("not confirmed: " + message.getMessageId() + ": " + e);
    }
  }

  private synchronized void record(String what, PubsubMessage message) {
    Instant published = Instant.ofEpochSecond(message.getPublishTime().getSeconds(), message.getPublishTime().getNanos());
    String eventTime = message.getAttributesOrDefault(options.getOrDefault("event-time", "event_time"), "");
    String id = message.getMessageId();
    String line = String.join("\t", Instant.now().toString(), what, id, published.toString(), eventTime) + "\n";
    try {
      Files.writeString(Path.of(options.get("record")), line, StandardOpenOption.CREATE, StandardOpenOption.APPEND);
    } catch (IOException e) {
      throw new UncheckedIOException(e); // and the message is not acknowledged
    }
  }

  private double number(String name, double otherwise) {
    return options.containsKey(name) ? Double.parseDouble(options.get(name)) : otherwise;
  }
}
