//! What rust-rdkafka is asked to do. One JSON object on a line of standard input runs a case, and its result is one on a
//! line of standard output; tests/interop/case_program.py is the other side.

use std::collections::BTreeMap;
use std::error::Error;
use std::io::{self, BufRead, Write};
use std::thread;
use std::time::{Duration, Instant};

use rdkafka::config::ClientConfig;
use rdkafka::consumer::{BaseConsumer, CommitMode, Consumer};
use rdkafka::error::KafkaError;
use rdkafka::message::{Header, Headers, Message, OwnedHeaders};
use rdkafka::producer::{BaseProducer, BaseRecord, DeliveryResult, Producer, ProducerContext, ThreadedProducer};
use rdkafka::types::RDKafkaErrorCode;
use rdkafka::{ClientContext, Offset, TopicPartitionList};
use serde_json::{json, Value};

const PATIENCE: Duration = Duration::from_secs(60);
const STEP: Duration = Duration::from_millis(20);

type Outcome = Result<Value, Box<dyn Error>>;

/// The inputs of a case; each uses what it needs.
struct Input(Value);

impl Input {
    fn text(&self, name: &str) -> &str {
        self.0[name].as_str().unwrap_or("")
    }

    fn number(&self, name: &str) -> i64 {
        self.0[name].as_i64().unwrap_or(0)
    }

    fn is(&self, name: &str) -> bool {
        self.0[name].as_bool().unwrap_or(false)
    }

    fn config(&self) -> ClientConfig {
        let mut config = ClientConfig::new();
        config.set("bootstrap.servers", self.text("servers"));
        config
    }
}

/// Keeps the first record that was not delivered.
#[derive(Default)]
struct Undelivered(std::sync::Mutex<Option<KafkaError>>);

impl ClientContext for Undelivered {}

impl ProducerContext for Undelivered {
    type DeliveryOpaque = ();

    fn delivery(&self, result: &DeliveryResult<'_>, _: ()) {
        if let Err((error, _)) = result {
            self.0.lock().unwrap().get_or_insert(error.clone());
        }
    }
}

fn values(of: &Value) -> Vec<&str> {
    of.as_array().map(|all| all.iter().filter_map(Value::as_str).collect()).unwrap_or_default()
}

fn produce(input: &Input) -> Outcome {
    let mut config = input.config();
    config.set("enable.idempotence", "true").set("linger.ms", "50");
    config.set("compression.type", input.text("codec"));
    let producer: ThreadedProducer<Undelivered> = config.create_with_context(Undelivered::default())?;
    for value in values(&input.0["values"]) {
        let mut record: BaseRecord<str, str> = BaseRecord::to(input.text("topic")).payload(value).partition(0);
        if !input.text("key").is_empty() {
            record = record.key(input.text("key"));
        }
        if !input.text("header").is_empty() {
            let header = Header { key: "h", value: Some(input.text("header")) };
            record = record.headers(OwnedHeaders::new().insert(header));
        }
        if input.number("timestampMs") != 0 {
            record = record.timestamp(input.number("timestampMs"));
        }
        producer.send(record).map_err(|(error, _)| error)?;
    }
    producer.flush(PATIENCE)?;
    let undelivered = producer.context().0.lock().unwrap().take();
    undelivered.map_or(Ok(Value::Null), |error| Err(error.into()))
}

fn member(input: &Input) -> Result<BaseConsumer, KafkaError> {
    let mut config = input.config();
    config.set("group.id", input.text("group")).set("auto.offset.reset", "earliest");
    config.set("enable.auto.commit", "false").set("heartbeat.interval.ms", "100").set("fetch.wait.max.ms", "50");
    config.set("isolation.level", if input.is("committed") { "read_committed" } else { "read_uncommitted" });
    let consumer: BaseConsumer = config.create()?;
    consumer.subscribe(&[input.text("topic")])?;
    Ok(consumer)
}

fn text(bytes: Option<&[u8]>) -> Value {
    bytes.map_or(Value::Null, |bytes| String::from_utf8_lossy(bytes).into())
}

fn consume(input: &Input) -> Outcome {
    let (consumer, began) = (member(input)?, Instant::now());
    let mut read = Vec::new();
    while (read.len() as i64) < input.number("count") {
        if began.elapsed() > PATIENCE {
            return Err(format!("{} of {} read", read.len(), input.number("count")).into());
        }
        let Some(message) = consumer.poll(STEP) else { continue };
        let message = message?;
        let headers: BTreeMap<&str, Value> = message
            .headers()
            .map(|all| all.iter().map(|header| (header.key, text(header.value))).collect())
            .unwrap_or_default();
        read.push(json!({
            "partition": message.partition(),
            "offset": message.offset(),
            "key": text(message.key()),
            "value": text(message.payload()),
            "headers": headers,
            "timestamp_ms": message.timestamp().to_millis(),
        }));
        if read.len() as i64 == input.number("count") {
            consumer.commit_message(&message, CommitMode::Sync)?;
        }
    }
    Ok(read.into())
}

/// Two join one after the other; how many partitions each has once both are in.
fn members(input: &Input) -> Outcome {
    let (both, began) = ([member(input)?, member(input)?], Instant::now());
    while began.elapsed() < PATIENCE {
        let mut counts = Vec::new();
        for each in &both {
            each.poll(STEP);
            counts.push(each.assignment()?.count() as i64);
        }
        if counts.iter().all(|count| *count > 0) && counts.iter().sum::<i64>() == input.number("partitions") {
            return Ok(counts.into());
        }
    }
    Err("the members did not share the partitions".into())
}

fn transactional(input: &Input) -> Result<BaseProducer, KafkaError> {
    let producer: BaseProducer = input.config().set("transactional.id", input.text("transactionalId")).create()?;
    producer.init_transactions(PATIENCE)?;
    Ok(producer)
}

fn send(producer: &BaseProducer, topic: &str, value: &str) -> Result<(), KafkaError> {
    let record: BaseRecord<str, str> = BaseRecord::to(topic).payload(value).partition(0);
    producer.send(record).map_err(|(error, _)| error)
}

fn end(producer: &BaseProducer, commit: bool) -> Result<(), KafkaError> {
    if commit {
        return producer.commit_transaction(PATIENCE);
    }
    producer.flush(PATIENCE)?;
    producer.abort_transaction(PATIENCE)
}

fn transactions(input: &Input) -> Outcome {
    let producer = transactional(input)?;
    for each in input.0["transactions"].as_array().into_iter().flatten() {
        producer.begin_transaction()?;
        for value in values(&each["values"]) {
            send(&producer, input.text("topic"), value)?;
        }
        end(&producer, each["commit"] == true)?;
    }
    Ok(Value::Null)
}

/// Two producers of one transactional id; the error code of the first one's commit.
fn fencing(input: &Input) -> Outcome {
    let mut both = Vec::new();
    for value in ["of the first", "of the second"] {
        let producer = transactional(input)?;
        producer.begin_transaction()?;
        send(&producer, input.text("topic"), value)?;
        producer.flush(PATIENCE)?;
        both.push(producer);
    }
    end(&both[1], true)?;
    let refused = end(&both[0], true).err();
    Ok(refused.and_then(|error| error.rdkafka_error_code()).map_or(0, |code| code as i32).into())
}

/// A transaction that moves the offset of a group.
fn offsets(input: &Input) -> Outcome {
    let producer = transactional(input)?;
    let consumer = member(input)?;
    let metadata = consumer.group_metadata().ok_or("the consumer has no group")?;
    let mut moved = TopicPartitionList::new();
    moved.add_partition_offset(input.text("topic"), 0, Offset::Offset(input.number("offset")))?;
    producer.begin_transaction()?;
    producer.send_offsets_to_transaction(&moved, &metadata, PATIENCE)?;
    end(&producer, input.is("commit"))?;
    Ok(Value::Null)
}

fn run(input: &Input) -> Outcome {
    match input.text("case") {
        "produce" => produce(input),
        "consume" => consume(input),
        "members" => members(input),
        "transactions" => transactions(input),
        "fencing" => fencing(input),
        "offsets" => offsets(input),
        other => Err(format!("there is no case {other}").into()),
    }
}

fn name_of(error: &(dyn Error + 'static)) -> String {
    let code = error.downcast_ref::<KafkaError>().and_then(KafkaError::rdkafka_error_code);
    code.unwrap_or(RDKafkaErrorCode::Unknown).to_string()
}

fn main() {
    for line in io::stdin().lock().lines() {
        let input = Input(serde_json::from_str(&line.expect("a line")).expect("JSON"));
        thread::spawn(move || {
            let id = input.0["id"].clone();
            let answer = match run(&input) {
                Ok(result) => json!({"id": id, "result": result}),
                Err(error) => {
                    let name = name_of(error.as_ref());
                    json!({"id": id, "error": {"name": name, "message": error.to_string()}})
                }
            };
            let mut output = io::stdout().lock();
            writeln!(output, "{answer}").and_then(|()| output.flush()).expect("standard output");
        });
    }
}
