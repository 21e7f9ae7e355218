// The cases of sarama.
package main

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/IBM/sarama"
)

type caseFunc func(context.Context, input) (any, error)

var cases = map[string]caseFunc{
	"produce":      produce,
	"consume":      consume,
	"members":      members,
	"transactions": transactions,
	"fencing":      fencing,
	"offsets":      offsets,
}

var codecs = map[string]sarama.CompressionCodec{
	"none":   sarama.CompressionNone,
	"gzip":   sarama.CompressionGZIP,
	"snappy": sarama.CompressionSnappy,
	"lz4":    sarama.CompressionLZ4,
	"zstd":   sarama.CompressionZSTD,
}

func (in input) servers() []string { return strings.Split(in.Servers, ",") }

func config(in input) *sarama.Config {
	made := sarama.NewConfig()
	made.Version = sarama.MaxVersion
	made.Producer.Return.Successes = true
	made.Producer.Idempotent = true
	made.Producer.RequiredAcks = sarama.WaitForAll
	made.Net.MaxOpenRequests = 1
	made.Producer.Partitioner = sarama.NewManualPartitioner
	made.Consumer.Offsets.Initial = sarama.OffsetOldest
	made.Consumer.Offsets.AutoCommit.Enable = false
	made.Consumer.MaxWaitTime = 50 * time.Millisecond
	made.Consumer.Group.Heartbeat.Interval = 100 * time.Millisecond
	if in.Committed {
		made.Consumer.IsolationLevel = sarama.ReadCommitted
	}
	return made
}

func messages(topic string, values []string) []*sarama.ProducerMessage {
	made := make([]*sarama.ProducerMessage, len(values))
	for index, value := range values {
		made[index] = &sarama.ProducerMessage{Topic: topic, Value: sarama.StringEncoder(value)}
	}
	return made
}

func produce(_ context.Context, in input) (any, error) {
	settings := config(in)
	settings.Producer.Compression = codecs[in.Codec]
	producer, err := sarama.NewSyncProducer(in.servers(), settings)
	if err != nil {
		return nil, err
	}
	defer producer.Close()
	made := messages(in.Topic, in.Values)
	for _, message := range made {
		if in.Key != "" {
			message.Key = sarama.StringEncoder(in.Key)
		}
		if in.Header != "" {
			message.Headers = []sarama.RecordHeader{{Key: []byte("h"), Value: []byte(in.Header)}}
		}
		if in.TimestampMs != 0 {
			message.Timestamp = time.UnixMilli(in.TimestampMs)
		}
	}
	return nil, producer.SendMessages(made)
}

// member is a consumer of a group: it says what it is assigned, and passes on what it reads.
type member struct {
	assigned func(partitions int)
	read     chan *sarama.ConsumerMessage
}

func (m *member) Setup(session sarama.ConsumerGroupSession) error {
	count := 0
	for _, partitions := range session.Claims() {
		count += len(partitions)
	}
	m.assigned(count)
	return nil
}

func (m *member) Cleanup(session sarama.ConsumerGroupSession) error {
	session.Commit()
	return nil
}

func (m *member) ConsumeClaim(session sarama.ConsumerGroupSession, claim sarama.ConsumerGroupClaim) error {
	for {
		select {
		case message, ok := <-claim.Messages():
			if !ok {
				return nil
			}
			session.MarkMessage(message, "")
			select {
			case m.read <- message:
			case <-session.Context().Done():
				return nil
			}
		case <-session.Context().Done():
			return nil
		}
	}
}

// join consumes as a member of the group until the context ends.
func join(ctx context.Context, in input, who *member) (func() error, error) {
	group, err := sarama.NewConsumerGroup(in.servers(), in.Group, config(in))
	if err != nil {
		return nil, err
	}
	ctx, cancel := context.WithCancel(ctx)
	done := make(chan struct{})
	go func() {
		defer close(done)
		for ctx.Err() == nil {
			if err := group.Consume(ctx, []string{in.Topic}, who); err != nil && ctx.Err() == nil {
				time.Sleep(10 * time.Millisecond)
			}
		}
	}()
	return func() error {
		cancel()
		<-done
		return group.Close()
	}, nil
}

func consume(ctx context.Context, in input) (any, error) {
	who := &member{func(int) {}, make(chan *sarama.ConsumerMessage)}
	leave, err := join(ctx, in, who)
	if err != nil {
		return nil, err
	}
	var read []seen
	for len(read) < in.Count {
		select {
		case message := <-who.read:
			headers := map[string]string{}
			for _, header := range message.Headers {
				headers[string(header.Key)] = string(header.Value)
			}
			read = append(read, seen{
				int(message.Partition), message.Offset, text(message.Key), text(message.Value), headers, message.Timestamp.UnixMilli(),
			})
		case <-ctx.Done():
			return nil, fmt.Errorf("%d of %d read: %w", len(read), in.Count, errors.Join(ctx.Err(), leave()))
		}
	}
	return read, leave()
}

// members: two join one after the other; how many partitions each has once both are in.
func members(ctx context.Context, in input) (any, error) {
	var of shares
	for index := range 2 {
		assigned := func(partitions int) { of.change(index, func(int) int { return partitions }) }
		leave, err := join(ctx, in, &member{assigned, make(chan *sarama.ConsumerMessage)})
		if err != nil {
			return nil, err
		}
		defer leave()
	}
	return of.wait(ctx, in.Partitions)
}

func transactional(in input) (sarama.SyncProducer, error) {
	settings := config(in)
	settings.Producer.Transaction.ID = in.TransactionalID
	settings.Producer.Transaction.Retry.Backoff = 20 * time.Millisecond
	return sarama.NewSyncProducer(in.servers(), settings)
}

func end(producer sarama.SyncProducer, commit bool) error {
	if commit {
		return producer.CommitTxn()
	}
	return producer.AbortTxn()
}

func transactions(_ context.Context, in input) (any, error) {
	producer, err := transactional(in)
	if err != nil {
		return nil, err
	}
	defer producer.Close()
	for _, each := range in.Transactions {
		if err := producer.BeginTxn(); err != nil {
			return nil, err
		}
		if err := producer.SendMessages(messages(in.Topic, each.Values)); err != nil {
			return nil, err
		}
		if err := end(producer, each.Commit); err != nil {
			return nil, err
		}
	}
	return nil, nil
}

// fencing: two producers of one transactional id; the error code of the first one's commit.
func fencing(_ context.Context, in input) (any, error) {
	var both [2]sarama.SyncProducer
	for index, value := range []string{"of the first", "of the second"} {
		producer, err := transactional(in)
		if err != nil {
			return nil, err
		}
		defer producer.Close()
		both[index] = producer
		if err := producer.BeginTxn(); err != nil {
			return nil, err
		}
		if err := producer.SendMessages(messages(in.Topic, []string{value})); err != nil {
			return nil, err
		}
	}
	if err := both[1].CommitTxn(); err != nil {
		return nil, err
	}
	return codeOf[sarama.KError](both[0].CommitTxn()), nil
}

// offsets: a transaction that moves a group without members.
func offsets(_ context.Context, in input) (any, error) {
	producer, err := transactional(in)
	if err != nil {
		return nil, err
	}
	defer producer.Close()
	if err := producer.BeginTxn(); err != nil {
		return nil, err
	}
	moved := map[string][]*sarama.PartitionOffsetMetadata{in.Topic: {{Partition: 0, Offset: in.Offset}}}
	if err := producer.AddOffsetsToTxn(moved, in.Group); err != nil {
		return nil, err
	}
	return nil, end(producer, in.Commit)
}

func nameOf(err error) string { return fmt.Sprint(codeOf[sarama.KError](err)) }
