// The cases of franz-go.
package main

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/sasl/plain"
	"github.com/twmb/franz-go/pkg/sasl/scram"
)

// optionsOf is how a client comes in.
func optionsOf(s *security) ([]kgo.Opt, error) {
	var options []kgo.Opt
	if s.Authority != "" {
		config := &tls.Config{RootCAs: x509.NewCertPool()}
		config.RootCAs.AppendCertsFromPEM([]byte(s.Authority))
		if s.Certificate != "" {
			pair, err := tls.X509KeyPair([]byte(s.Certificate), []byte(s.Key))
			if err != nil {
				return nil, err
			}
			config.Certificates = []tls.Certificate{pair}
		}
		options = append(options, kgo.DialTLSConfig(config))
	}
	login := scram.Auth{User: s.Username, Pass: s.Password}
	switch s.Mechanism {
	case "PLAIN":
		options = append(options, kgo.SASL(plain.Auth{User: s.Username, Pass: s.Password}.AsMechanism()))
	case "SCRAM-SHA-256":
		options = append(options, kgo.SASL(login.AsSha256Mechanism()))
	case "SCRAM-SHA-512":
		options = append(options, kgo.SASL(login.AsSha512Mechanism()))
	}
	return options, nil
}

type caseFunc func(context.Context, input) (any, error)

var cases = map[string]caseFunc{
	"produce":                 produce,
	"consume":                 consume,
	"transactions":            transactions,
	"fencing":                 fencing,
	"offsets_in_transactions": offsetsInTransactions,
	"copy":                    copyRecords,
	"members":                 members,
	"topics":                  topics,
	"settings":                settings,
	"records":                 records,
	"groups":                  groups,
	"transaction_state":       transactionState,
	"cluster":                 cluster,
	"quotas":                  quotas,
	"log_directories":         logDirectories,
	"sessions":                sessions,
}

var codecs = map[string]kgo.CompressionCodec{
	"none":   kgo.NoCompression(),
	"gzip":   kgo.GzipCompression(),
	"snappy": kgo.SnappyCompression(),
	"lz4":    kgo.Lz4Compression(),
	"zstd":   kgo.ZstdCompression(),
}

func newClient(in input, options ...kgo.Opt) (*kgo.Client, error) {
	common := []kgo.Opt{
		kgo.SeedBrokers(strings.Split(in.Servers, ",")...),
		kgo.FetchMaxWait(50 * time.Millisecond),
		kgo.RetryBackoffFn(func(int) time.Duration { return 20 * time.Millisecond }),
		kgo.RecordPartitioner(kgo.ManualPartitioner()),
	}
	if in.Security != nil {
		secure, err := optionsOf(in.Security)
		if err != nil {
			return nil, err
		}
		common = append(common, secure...)
	}
	return kgo.NewClient(append(common, options...)...)
}

func recordsOf(topic string, values []string) []*kgo.Record {
	made := make([]*kgo.Record, len(values))
	for index, value := range values {
		made[index] = &kgo.Record{Topic: topic, Value: []byte(value)}
	}
	return made
}

func produce(ctx context.Context, in input) (any, error) {
	options := []kgo.Opt{kgo.ProducerBatchMaxBytes(1 << 20)}
	if in.Codec != "" {
		options = append(options, kgo.ProducerBatchCompression(codecs[in.Codec]))
	}
	client, err := newClient(in, options...)
	if err != nil {
		return nil, err
	}
	defer client.Close()
	if err := client.Ping(ctx); err != nil { // a refused login is repeated while records wait, but not by this
		return nil, err
	}
	made := recordsOf(in.Topic, in.Values)
	for _, record := range made {
		if in.Key != "" {
			record.Key = []byte(in.Key)
		}
		if in.Header != "" {
			record.Headers = []kgo.RecordHeader{{Key: "h", Value: []byte(in.Header)}}
		}
		if in.TimestampMs != 0 {
			record.Timestamp = time.UnixMilli(in.TimestampMs)
		}
	}
	return nil, client.ProduceSync(ctx, made...).FirstErr()
}

func readers(in input) []kgo.Opt {
	isolation := kgo.ReadUncommitted()
	if in.Committed {
		isolation = kgo.ReadCommitted()
	}
	return []kgo.Opt{
		kgo.ConsumeTopics(in.Topic),
		kgo.FetchIsolationLevel(isolation),
		kgo.ConsumeResetOffset(kgo.NewOffset().AtStart()),
	}
}

// protocol is that of KIP-848 where the case asks for it.
func protocol(in input) []kgo.Opt {
	if in.ConsumerGroups {
		return []kgo.Opt{kgo.ServerSideBalancer()}
	}
	return nil
}

func consume(ctx context.Context, in input) (any, error) {
	options := readers(in)
	if in.Group != "" {
		options = append(options, kgo.ConsumerGroup(in.Group), kgo.DisableAutoCommit())
		options = append(options, protocol(in)...)
	}
	client, err := newClient(in, options...)
	if err != nil {
		return nil, err
	}
	defer client.Close()
	var read []seen
	for len(read) < in.Count {
		fetches := client.PollFetches(ctx)
		if err := fetches.Err0(); err != nil {
			return nil, err
		}
		fetches.EachRecord(func(record *kgo.Record) {
			headers := map[string]string{}
			for _, header := range record.Headers {
				headers[header.Key] = string(header.Value)
			}
			read = append(read, seen{
				int(record.Partition), record.Offset, text(record.Key), text(record.Value), headers, record.Timestamp.UnixMilli(),
			})
		})
	}
	if in.Group == "" {
		return read, nil
	}
	return read, client.CommitUncommittedOffsets(ctx)
}

func end(ctx context.Context, client *kgo.Client, commit bool) error {
	if err := client.Flush(ctx); err != nil {
		return err
	}
	return client.EndTransaction(ctx, kgo.TransactionEndTry(commit))
}

func transactions(ctx context.Context, in input) (any, error) {
	client, err := newClient(in, kgo.TransactionalID(in.TransactionalID))
	if err != nil {
		return nil, err
	}
	defer client.Close()
	for _, each := range in.Transactions {
		if err := client.BeginTransaction(); err != nil {
			return nil, err
		}
		if err := client.ProduceSync(ctx, recordsOf(in.Topic, each.Values)...).FirstErr(); err != nil {
			return nil, err
		}
		if err := end(ctx, client, each.Commit); err != nil {
			return nil, err
		}
	}
	return nil, nil
}

// fencing: two producers of one transactional id; the error of the first one's commit.
func fencing(ctx context.Context, in input) (any, error) {
	var both [2]*kgo.Client
	for index, value := range []string{"of the first", "of the second"} {
		client, err := newClient(in, kgo.TransactionalID(in.TransactionalID))
		if err != nil {
			return nil, err
		}
		defer client.Close()
		both[index] = client
		if err := client.BeginTransaction(); err != nil {
			return nil, err
		}
		if err := client.ProduceSync(ctx, recordsOf(in.Topic, []string{value})...).FirstErr(); err != nil {
			return nil, err
		}
	}
	if err := end(ctx, both[1], true); err != nil {
		return nil, err
	}
	return nameOf(end(ctx, both[0], true)), nil
}

func offsetsInTransactions(ctx context.Context, in input) (any, error) {
	client, err := newClient(in, kgo.TransactionalID(in.TransactionalID))
	if err != nil {
		return nil, err
	}
	defer client.Close()
	admin := kadm.NewClient(client)
	var after []int64
	for index, commit := range []bool{true, false} {
		if err := commitInTransaction(ctx, in, int64(3-index), commit); err != nil {
			return nil, err
		}
		fetched, err := admin.FetchOffsets(ctx, in.Group)
		if err != nil {
			return nil, err
		}
		committed, _ := fetched.Lookup(in.Topic, 0)
		after = append(after, committed.At)
	}
	return after, nil
}

// commitInTransaction joins the group, as franz-go adds offsets to a transaction for members only.
func commitInTransaction(ctx context.Context, in input, offset int64, commit bool) error {
	session, err := kgo.NewGroupTransactSession(
		append(readers(in),
			kgo.SeedBrokers(strings.Split(in.Servers, ",")...),
			kgo.FetchMaxWait(50*time.Millisecond),
			kgo.ConsumerGroup(in.Group),
			kgo.RequireStableFetchOffsets(),
			kgo.TransactionalID(in.TransactionalID))...)
	if err != nil {
		return err
	}
	defer session.Close()
	for read := int64(0); read < offset; {
		fetches := session.PollRecords(ctx, int(offset-read))
		if err := fetches.Err0(); err != nil {
			return err
		}
		read += int64(fetches.NumRecords())
	}
	if err := session.Begin(); err != nil {
		return err
	}
	_, err = session.End(ctx, kgo.TransactionEndTry(commit))
	return err
}

// copyRecords copies with the members' own offsets; every third transaction is aborted and done again.
func copyRecords(ctx context.Context, in input) (any, error) {
	copied, number, problems := 0, 0, 0
	for copied < in.Count {
		client, err := kgo.NewGroupTransactSession(
			append(readers(in),
				kgo.SeedBrokers(strings.Split(in.Servers, ",")...),
				kgo.FetchMaxWait(50*time.Millisecond),
				kgo.RetryBackoffFn(func(int) time.Duration { return 20 * time.Millisecond }),
				kgo.ConsumerGroup(in.Group),
				kgo.SessionTimeout(6*time.Second), // a member that died with its broker keeps its partitions so long
				kgo.RebalanceTimeout(6*time.Second),
				kgo.RequireStableFetchOffsets(),
				kgo.TransactionalID(in.TransactionalID),
				kgo.RecordPartitioner(kgo.ManualPartitioner()))...)
		if err != nil {
			return nil, err
		}
		for copied < in.Count {
			fetches := client.PollRecords(ctx, in.Size)
			if ctx.Err() != nil {
				client.Close()
				return nil, fmt.Errorf("%d of %d copied: %w", copied, in.Count, ctx.Err())
			}
			if fetches.NumRecords() == 0 {
				continue
			}
			number++
			if err := client.Begin(); err != nil {
				problems++
				break
			}
			fetches.EachRecord(func(record *kgo.Record) {
				client.Produce(ctx, &kgo.Record{Topic: in.Target, Value: record.Value}, nil)
			})
			wanted := number%3 != 0
			committed, err := client.End(ctx, kgo.TransactionEndTry(wanted))
			if err != nil {
				problems++
				break // what became of it is what the group's offset says: a new member asks for it
			}
			if committed {
				copied += fetches.NumRecords()
			}
		}
		client.Close()
		fetched, err := committedOffset(ctx, in)
		for err != nil && ctx.Err() == nil { // the broker may be away
			time.Sleep(20 * time.Millisecond)
			fetched, err = committedOffset(ctx, in)
		}
		copied = int(fetched)
	}
	return map[string]int{"transactions": number, "problems": problems}, nil
}

func committedOffset(ctx context.Context, in input) (int64, error) {
	client, err := newClient(in)
	if err != nil {
		return 0, err
	}
	defer client.Close()
	fetched, err := kadm.NewClient(client).FetchOffsets(ctx, in.Group)
	if err != nil {
		return 0, err
	}
	committed, _ := fetched.Lookup(in.Topic, 0)
	return committed.At, nil
}

// members: two join one after the other; how many partitions each has once both are in.
func members(ctx context.Context, in input) (any, error) {
	var of shares
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	for index := range 2 {
		change := func(by int) func(context.Context, *kgo.Client, map[string][]int32) {
			return func(_ context.Context, _ *kgo.Client, partitions map[string][]int32) {
				of.change(index, func(count int) int { return count + by*len(partitions[in.Topic]) })
			}
		}
		client, err := newClient(in, append(append(readers(in), protocol(in)...),
			kgo.ConsumerGroup(in.Group),
			kgo.HeartbeatInterval(100*time.Millisecond),
			kgo.OnPartitionsAssigned(change(1)),
			kgo.OnPartitionsRevoked(change(-1)),
			kgo.OnPartitionsLost(change(-1)))...)
		if err != nil {
			return nil, err
		}
		defer client.Close()
		go func() {
			for ctx.Err() == nil {
				client.PollFetches(ctx)
			}
		}()
	}
	counts, err := of.wait(ctx, in.Partitions)
	if err != nil {
		return nil, err
	}
	described, err := describeGroup(ctx, in)
	return map[string]any{"counts": counts, "protocol": described}, err
}

// describeGroup says the group's type and state, as ListGroups has them.
func describeGroup(ctx context.Context, in input) (string, error) {
	client, err := newClient(in)
	if err != nil {
		return "", err
	}
	defer client.Close()
	listed, err := kadm.NewClient(client).ListGroups(ctx)
	if err != nil {
		return "", err
	}
	return listed[in.Group].State, nil
}

func withAdmin(in input, use func(*kadm.Client) (any, error)) (any, error) {
	client, err := newClient(in)
	if err != nil {
		return nil, err
	}
	admin := kadm.NewClient(client)
	defer admin.Close()
	return use(admin)
}

func topics(ctx context.Context, in input) (any, error) {
	return withAdmin(in, func(admin *kadm.Client) (any, error) {
		retention := "60000"
		made := map[string]*string{"retention.ms": &retention}
		if _, err := admin.CreateTopic(ctx, 2, 1, made, in.Topic); err != nil {
			return nil, err
		}
		_, again := admin.CreateTopic(ctx, 2, 1, made, in.Topic)
		updated, err := admin.UpdatePartitions(ctx, 4, in.Topic)
		if err != nil {
			return nil, err
		}
		if err := updated.Error(); err != nil {
			return nil, err
		}
		partitions := 0
		for partitions != 4 {
			listed, err := admin.ListTopics(ctx, in.Topic)
			if err != nil {
				return nil, err
			}
			partitions = len(listed[in.Topic].Partitions)
		}
		fewer, err := admin.UpdatePartitions(ctx, 3, in.Topic)
		if err != nil {
			return nil, err
		}
		deleted, err := admin.DeleteTopic(ctx, in.Topic)
		if err != nil {
			return nil, err
		}
		return map[string]any{
			"again": nameOf(again), "partitions": partitions, "fewer": nameOf(fewer.Error()), "deleted": nameOf(deleted.Err),
		}, nil
	})
}

func settings(ctx context.Context, in input) (any, error) {
	return withAdmin(in, func(admin *kadm.Client) (any, error) {
		value := func() (string, error) {
			described, err := admin.DescribeTopicConfigs(ctx, in.Topic)
			if err != nil {
				return "", err
			}
			config, err := described.On(in.Topic, nil)
			if err != nil {
				return "", err
			}
			for _, entry := range config.Configs {
				if entry.Key == "retention.ms" {
					return entry.MaybeValue() + " " + entry.Source.String(), nil
				}
			}
			return "", errors.New("retention.ms is missing")
		}
		wanted := "5000"
		changes := [][]kadm.AlterConfig{
			nil,
			{{Op: kadm.SetConfig, Name: "retention.ms", Value: &wanted}},
			{{Op: kadm.DeleteConfig, Name: "retention.ms"}},
		}
		var values []string
		for _, change := range changes {
			if change != nil {
				altered, err := admin.AlterTopicConfigs(ctx, change, in.Topic)
				if err != nil {
					return nil, err
				}
				if altered[0].Err != nil {
					return nil, altered[0].Err
				}
			}
			current, err := value()
			if err != nil {
				return nil, err
			}
			values = append(values, current)
		}
		wrong, err := admin.AlterTopicConfigs(ctx, []kadm.AlterConfig{{Name: "no.such.name", Value: &wanted}}, in.Topic)
		if err != nil {
			return nil, err
		}
		return map[string]any{"values": values, "wrong": nameOf(wrong[0].Err)}, nil
	})
}

func records(ctx context.Context, in input) (any, error) {
	return withAdmin(in, func(admin *kadm.Client) (any, error) {
		until := make(kadm.Offsets)
		until.AddOffset(in.Topic, 0, 2, -1)
		deleted, err := admin.DeleteRecords(ctx, until)
		if err != nil {
			return nil, err
		}
		if err := deleted.Error(); err != nil {
			return nil, err
		}
		starts, err := admin.ListStartOffsets(ctx, in.Topic)
		if err != nil {
			return nil, err
		}
		ends, err := admin.ListEndOffsets(ctx, in.Topic)
		if err != nil {
			return nil, err
		}
		start, _ := starts.Lookup(in.Topic, 0)
		end, _ := ends.Lookup(in.Topic, 0)
		return []int64{start.Offset, end.Offset}, nil
	})
}

func groups(ctx context.Context, in input) (any, error) {
	return withAdmin(in, func(admin *kadm.Client) (any, error) {
		offsets := make(kadm.Offsets)
		offsets.AddOffset(in.Topic, 0, 2, -1)
		if err := admin.CommitAllOffsets(ctx, in.Group, offsets); err != nil {
			return nil, err
		}
		described, err := admin.DescribeGroups(ctx, in.Group)
		if err != nil {
			return nil, err
		}
		lags, err := admin.Lag(ctx, in.Group)
		if err != nil {
			return nil, err
		}
		lag := int64(-1)
		if found, ok := lags[in.Group].Lag.Lookup(in.Topic, 0); ok {
			lag = found.Lag
		}
		deleted, err := admin.DeleteGroups(ctx, in.Group)
		if err != nil {
			return nil, err
		}
		again, err := admin.DeleteGroups(ctx, in.Group)
		if err != nil {
			return nil, err
		}
		return map[string]any{
			"state":   described[in.Group].State,
			"lag":     lag,
			"deleted": nameOf(deleted[in.Group].Err),
			"again":   nameOf(again[in.Group].Err),
		}, nil
	})
}

// transactionState leaves a transaction open and says what the administrator sees of it (KIP-664).
func transactionState(ctx context.Context, in input) (any, error) {
	producer, err := newClient(in, kgo.TransactionalID(in.TransactionalID))
	if err != nil {
		return nil, err
	}
	defer producer.Close()
	if err := producer.BeginTransaction(); err != nil {
		return nil, err
	}
	if err := producer.ProduceSync(ctx, recordsOf(in.Topic, []string{"open"})...).FirstErr(); err != nil {
		return nil, err
	}
	return withAdmin(in, func(admin *kadm.Client) (any, error) {
		listed, err := admin.ListTransactions(ctx, nil, []string{"Ongoing"})
		if err != nil {
			return nil, err
		}
		described, err := admin.DescribeTransactions(ctx, in.TransactionalID)
		if err != nil {
			return nil, err
		}
		partitions := make(kadm.TopicsSet)
		partitions.Add(in.Topic, 0)
		producers, err := admin.DescribeProducers(ctx, partitions)
		if err != nil {
			return nil, err
		}
		transaction := described[in.TransactionalID]
		return map[string]any{
			"is_listed":  slices.Contains(listed.TransactionalIDs(), in.TransactionalID),
			"state":      transaction.State,
			"timeout_ms": transaction.TimeoutMillis,
			"partitions": transaction.Topics.IntoList()[0].Partitions,
			"producers":  len(producers[in.Topic].Partitions[0].ActiveProducers),
		}, end(ctx, producer, true)
	})
}

func cluster(ctx context.Context, in input) (any, error) {
	return withAdmin(in, func(admin *kadm.Client) (any, error) {
		metadata, err := admin.BrokerMetadata(ctx)
		if err != nil {
			return nil, err
		}
		var brokers []string
		for _, broker := range metadata.Brokers {
			brokers = append(brokers, fmt.Sprintf("%s:%d", broker.Host, broker.Port))
		}
		return map[string]any{"brokers": brokers, "cluster_id": metadata.Cluster}, nil
	})
}

func quotas(ctx context.Context, in input) (any, error) {
	return withAdmin(in, func(admin *kadm.Client) (any, error) {
		entity := kadm.ClientQuotaEntity{{Type: "client-id", Name: &in.Topic}}
		component := []kadm.DescribeClientQuotaComponent{{Type: "client-id", MatchName: &in.Topic}}
		var values []float64
		for _, op := range []kadm.AlterClientQuotaOp{
			{Key: "producer_byte_rate", Value: 1000}, {Key: "producer_byte_rate", Remove: true},
		} {
			altered, err := admin.AlterClientQuotas(ctx, []kadm.AlterClientQuotaEntry{
				{Entity: entity, Ops: []kadm.AlterClientQuotaOp{op}},
			})
			if err != nil {
				return nil, err
			}
			if altered[0].Err != nil {
				return nil, altered[0].Err
			}
			described, err := describedQuota(ctx, admin, component, !op.Remove)
			if err != nil {
				return nil, err
			}
			values = append(values, described)
		}
		return values, nil
	})
}

// describedQuota asks until the quota is there, or is not: a broker learns of it after the controller has answered.
func describedQuota(
	ctx context.Context, admin *kadm.Client, component []kadm.DescribeClientQuotaComponent, isThere bool,
) (float64, error) {
	for {
		described, err := admin.DescribeClientQuotas(ctx, true, component)
		if err != nil {
			return 0, err
		}
		if (len(described) > 0) == isThere {
			if !isThere {
				return -1, nil
			}
			return described[0].Values[0].Value, nil
		}
		if ctx.Err() != nil {
			return 0, ctx.Err()
		}
	}
}

func logDirectories(ctx context.Context, in input) (any, error) {
	return withAdmin(in, func(admin *kadm.Client) (any, error) {
		partitions := make(kadm.TopicsSet)
		partitions.Add(in.Topic, 0)
		described, err := admin.DescribeAllLogDirs(ctx, partitions)
		if err != nil {
			return nil, err
		}
		for _, directories := range described {
			if found, ok := directories.LookupPartition(in.Topic, 0); ok {
				return found.Size, directories.Error()
			}
		}
		return nil, errors.New("no broker has the partition")
	})
}

// sessions reads record by record over fetch sessions (KIP-227) while other partitions are idle.
func sessions(ctx context.Context, in input) (any, error) {
	client, err := newClient(in, readers(in)...)
	if err != nil {
		return nil, err
	}
	defer client.Close()
	var read []string
	for _, value := range in.Values {
		if err := client.ProduceSync(ctx, recordsOf(in.Topic, []string{value})...).FirstErr(); err != nil {
			return nil, err
		}
		fetches := client.PollFetches(ctx)
		if err := fetches.Err0(); err != nil {
			return nil, err
		}
		fetches.EachRecord(func(record *kgo.Record) { read = append(read, string(record.Value)) })
	}
	return read, nil
}

// nameOf is the broker's name of an error, or the client's text.
func nameOf(err error) string {
	var known *kerr.Error
	switch {
	case err == nil:
		return ""
	case errors.As(err, &known):
		return known.Message
	default:
		return err.Error()
	}
}
