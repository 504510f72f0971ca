// Reads a subscription by the client's streaming pull, as a service of somebody's own would: it holds each message for
// a random moment, gives some back, pauses now and then, crashes if asked to, and acknowledges the rest.
//
// Before it acknowledges a message it appends a line "sending" to the record, and a line "confirmed" when the client
// says that the acknowledgement is done: moment, what, message id, publish time, event time. So a crash loses no
// acknowledgement from the record. It ends after so many acknowledgements or so many seconds.
package main

import (
	"context"
	"flag"
	"fmt"
	"log"
	"math"
	"math/rand/v2"
	"os"
	"sync/atomic"
	"time"

	"cloud.google.com/go/pubsub/v2"
)

var (
	project      = flag.String("project", "", "the project")
	subscription = flag.String("subscription", "", "the subscription that is read")
	recordFile   = flag.String("record", "record.tsv", "the file of what was acknowledged")
	messages     = flag.Int64("messages", 1e9, "acknowledgements before it ends")
	seconds      = flag.Float64("seconds", 60, "how long it reads at most")
	hold         = flag.Float64("hold-ms", 0, "the longest that a message is held, in milliseconds")
	nack         = flag.Float64("nack", 0, "the share that is given back")
	pauseEvery   = flag.Float64("pause-every", 1e6, "seconds between two pauses")
	pauseFor     = flag.Float64("pause-for", 0, "seconds of a pause")
	crashAfter   = flag.Int64("crash-after", 0, "acknowledgements before it crashes; 0: never")
	except       = flag.String("except", "", "the id of a message that is never acknowledged")
	eventTime    = flag.String("event-time", "event_time", "the attribute that holds the event time")
)

var (
	began        = time.Now()
	acknowledged atomic.Int64
)

func main() {
	flag.Parse()
	file, err := os.OpenFile(*recordFile, os.O_APPEND|os.O_CREATE|os.O_WRONLY, 0o600)
	if err != nil {
		log.Fatal(err)
	}
	client, err := pubsub.NewClient(context.Background(), *project) // it looks at PUBSUB_EMULATOR_HOST
	if err != nil {
		log.Fatal(err)
	}
	subscriber := client.Subscriber(*subscription)
	subscriber.ReceiveSettings.MaxDurationPerAckExtension = 10 * time.Second // what a crash held comes again after it
	ctx, done := context.WithTimeout(context.Background(), inSeconds(*seconds))
	defer done()
	err = subscriber.Receive(ctx, func(_ context.Context, m *pubsub.Message) {
		time.Sleep(time.Duration(rand.Float64() * *hold * float64(time.Millisecond)))
		finish(file, m)
		if acknowledged.Load() >= *messages {
			done()
		}
	})
	if err != nil {
		log.Fatal(err)
	}
}

// pauses says whether it pauses now: nothing is acknowledged, as when a reader's own sink does not answer.
func pauses() bool {
	return math.Mod(time.Since(began).Seconds(), *pauseEvery+*pauseFor) > *pauseEvery
}

func finish(file *os.File, m *pubsub.Message) {
	if m.ID == *except || rand.Float64() < *nack {
		m.Nack()
		return
	}
	for pauses() {
		time.Sleep(50 * time.Millisecond)
	}
	record(file, "sending", m)
	status, err := m.AckWithResult().Get(context.Background())
	if err != nil || status != pubsub.AcknowledgeStatusSuccess {
		log.Printf("not confirmed: %s: %v %v", m.ID, status, err)
		return
	}
	record(file, "confirmed", m)
	if acknowledged.Add(1) == *crashAfter {
		os.Exit(3) // as a crash: nothing is closed, nothing is given back
	}
}

// One write appends one whole line, whoever else writes.
func record(file *os.File, what string, m *pubsub.Message) {
	now, published := time.Now().UTC().Format(time.RFC3339Nano), m.PublishTime.UTC().Format(time.RFC3339Nano)
	if _, err := fmt.Fprintf(file, "%s\t%s\t%s\t%s\t%s\n", now, what, m.ID, published, m.Attributes[*eventTime]); err != nil {
		log.Fatal(err) // and the message is not acknowledged
	}
}

func inSeconds(s float64) time.Duration { return time.Duration(s * float64(time.Second)) }
