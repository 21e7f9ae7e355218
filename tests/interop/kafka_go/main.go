// The cases of kafka-go.
package main

import (
	"context"
	"fmt"
	"time"

	"github.com/segmentio/kafka-go"
)

type caseFunc func(context.Context, input) (any, error)

var cases = map[string]caseFunc{
	"produce":   produce,
	"consume":   consume,
	"partition": partition,
	"members":   members,
}

var codecs = map[string]kafka.Compression{
	"none":   0,
	"gzip":   kafka.Gzip,
	"snappy": kafka.Snappy,
	"lz4":    kafka.Lz4,
	"zstd":   kafka.Zstd,
}

// transport knows nothing of earlier cases: kafka-go answers for six seconds from the topics that it knows.
func transport() *kafka.Transport { return &kafka.Transport{} }

func produce(ctx context.Context, in input) (any, error) {
	writer := &kafka.Writer{
		Addr:         kafka.TCP(in.Servers),
		Topic:        in.Topic,
		RequiredAcks: kafka.RequireAll,
		Compression:  codecs[in.Codec],
		BatchTimeout: time.Millisecond,
		BatchBytes:   1 << 20,
		Transport:    transport(),
	}
	defer writer.Close()
	made := make([]kafka.Message, len(in.Values))
	for index, value := range in.Values {
		made[index].Value = []byte(value)
		if in.Key != "" {
			made[index].Key = []byte(in.Key)
		}
		if in.Header != "" {
			made[index].Headers = []kafka.Header{{Key: "h", Value: []byte(in.Header)}}
		}
		if in.TimestampMs != 0 {
			made[index].Time = time.UnixMilli(in.TimestampMs)
		}
	}
	return nil, writer.WriteMessages(ctx, made...)
}

func reader(in input) *kafka.Reader {
	config := kafka.ReaderConfig{
		Brokers:           []string{in.Servers},
		Topic:             in.Topic,
		GroupID:           in.Group,
		StartOffset:       kafka.FirstOffset,
		MaxWait:           50 * time.Millisecond,
		HeartbeatInterval: 100 * time.Millisecond,
		MaxBytes:          10 << 20,
	}
	if in.Committed {
		config.IsolationLevel = kafka.ReadCommitted
	}
	return kafka.NewReader(config)
}

func read(ctx context.Context, in input, from *kafka.Reader) ([]seen, error) {
	var all []seen
	for len(all) < in.Count {
		message, err := from.FetchMessage(ctx)
		if err != nil {
			return nil, fmt.Errorf("%d of %d read: %w", len(all), in.Count, err)
		}
		headers := map[string]string{}
		for _, header := range message.Headers {
			headers[header.Key] = string(header.Value)
		}
		all = append(all, seen{
			message.Partition, message.Offset, text(message.Key), text(message.Value), headers, message.Time.UnixMilli(),
		})
		if in.Group != "" {
			if err := from.CommitMessages(ctx, message); err != nil {
				return nil, err
			}
		}
	}
	return all, nil
}

// consume reads as a member of a group.
func consume(ctx context.Context, in input) (any, error) {
	from := reader(in)
	defer from.Close()
	return read(ctx, in, from)
}

// partition reads partition 0 without a group.
func partition(ctx context.Context, in input) (any, error) {
	in.Group = ""
	from := reader(in)
	defer from.Close()
	return read(ctx, in, from)
}

// members: two join one after the other; how many partitions each has once both are in.
func members(ctx context.Context, in input) (any, error) {
	var of shares
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	for index := range 2 {
		group, err := kafka.NewConsumerGroup(kafka.ConsumerGroupConfig{
			ID: in.Group, Brokers: []string{in.Servers}, Topics: []string{in.Topic}, HeartbeatInterval: 100 * time.Millisecond,
		})
		if err != nil {
			return nil, err
		}
		defer group.Close()
		go func() {
			for ctx.Err() == nil {
				generation, err := group.Next(ctx)
				if err != nil {
					continue
				}
				of.change(index, func(int) int { return len(generation.Assignments[in.Topic]) })
			}
		}()
	}
	return of.wait(ctx, in.Partitions)
}

func nameOf(err error) string { return fmt.Sprint(codeOf[kafka.Error](err)) }
