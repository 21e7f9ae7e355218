// The cases of kafka-go.
package main

import (
	"context"
	"errors"
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
	"topics":    topics,
	"settings":  settings,
	"groups":    groups,
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

func client(in input) *kafka.Client {
	return &kafka.Client{Addr: kafka.TCP(in.Servers), Timeout: 10 * time.Second, Transport: transport()}
}

func topics(ctx context.Context, in input) (any, error) {
	made := kafka.TopicConfig{Topic: in.Topic, NumPartitions: 2, ReplicationFactor: 1}
	create := func() (error, error) {
		created, err := client(in).CreateTopics(ctx, &kafka.CreateTopicsRequest{Topics: []kafka.TopicConfig{made}})
		if err != nil {
			return nil, err
		}
		return created.Errors[in.Topic], nil
	}
	if refused, err := create(); err != nil || refused != nil {
		return nil, errors.Join(err, refused)
	}
	again, err := create()
	if err != nil {
		return nil, err
	}
	added, err := client(in).CreatePartitions(ctx, &kafka.CreatePartitionsRequest{
		Topics: []kafka.TopicPartitionsConfig{{Name: in.Topic, Count: 4}},
	})
	if err != nil {
		return nil, err
	}
	if refused := added.Errors[in.Topic]; refused != nil {
		return nil, refused
	}
	partitions := 0
	for partitions != 4 {
		described, err := client(in).Metadata(ctx, &kafka.MetadataRequest{Topics: []string{in.Topic}})
		if err != nil {
			return nil, err
		}
		partitions = len(described.Topics[0].Partitions)
	}
	deleted, err := client(in).DeleteTopics(ctx, &kafka.DeleteTopicsRequest{Topics: []string{in.Topic}})
	if err != nil {
		return nil, err
	}
	return map[string]any{
		"again": codeOf[kafka.Error](again), "partitions": partitions, "deleted": codeOf[kafka.Error](deleted.Errors[in.Topic]),
	}, nil
}

func settings(ctx context.Context, in input) (any, error) {
	change := kafka.IncrementalAlterConfigsRequestConfig{
		Name: "retention.ms", Value: "5000", ConfigOperation: kafka.ConfigOperationSet,
	}
	altered, err := client(in).IncrementalAlterConfigs(ctx, &kafka.IncrementalAlterConfigsRequest{
		Resources: []kafka.IncrementalAlterConfigsRequestResource{{
			ResourceType: kafka.ResourceTypeTopic, ResourceName: in.Topic,
			Configs: []kafka.IncrementalAlterConfigsRequestConfig{change},
		}},
	})
	if err != nil {
		return nil, err
	}
	if refused := altered.Resources[0].Error; refused != nil {
		return nil, refused
	}
	for {
		described, err := client(in).DescribeConfigs(ctx, &kafka.DescribeConfigsRequest{
			Resources: []kafka.DescribeConfigRequestResource{{
				ResourceType: kafka.ResourceTypeTopic, ResourceName: in.Topic, ConfigNames: []string{"retention.ms"},
			}},
		})
		if err != nil {
			return nil, err
		}
		entry := described.Resources[0].ConfigEntries[0]
		if entry.ConfigValue != "604800000" {
			return entry.ConfigValue, nil
		}
	}
}

func groups(ctx context.Context, in input) (any, error) {
	described, err := client(in).DescribeGroups(ctx, &kafka.DescribeGroupsRequest{GroupIDs: []string{in.Group}})
	if err != nil {
		return nil, err
	}
	committed, err := client(in).OffsetFetch(ctx, &kafka.OffsetFetchRequest{
		GroupID: in.Group, Topics: map[string][]int{in.Topic: {0}},
	})
	if err != nil {
		return nil, err
	}
	var codes []int
	for range 2 {
		deleted, err := client(in).DeleteGroups(ctx, &kafka.DeleteGroupsRequest{GroupIDs: []string{in.Group}})
		if err != nil {
			return nil, err
		}
		codes = append(codes, codeOf[kafka.Error](deleted.Errors[in.Group]))
	}
	return map[string]any{
		"state":   described.Groups[0].GroupState,
		"offset":  committed.Topics[in.Topic][0].CommittedOffset,
		"deleted": codes[0],
		"again":   codes[1],
	}, nil
}

func nameOf(err error) string { return fmt.Sprint(codeOf[kafka.Error](err)) }
