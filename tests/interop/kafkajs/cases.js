// What kafkajs is asked to do. One JSON object on a line of standard input runs a case, and its result is one on a
// line of standard output; tests/interop/case_program.py is the other side.
'use strict'

const readline = require('node:readline')
const path = require('node:path')
const { createRequire } = require('node:module')

// the packages are in a cache directory, which is named on the command line
const load = createRequire(path.join(process.argv[2], 'node_modules', 'anywhere.js'))
const kafkajs = load('kafkajs')
const { Kafka, CompressionTypes, CompressionCodecs, logLevel } = kafkajs
CompressionCodecs[CompressionTypes.Snappy] = load('kafkajs-snappy')

// How a broker wants its clients to come in, from what a case is told of it.
const securityOf = ({ authority, certificate, key, mechanism, username, password }) => ({
  ssl: authority ? { ca: [authority], cert: certificate, key } : undefined,
  sasl: mechanism ? { mechanism: mechanism.toLowerCase(), username, password } : undefined,
})

const client = ({ servers, clientId = 'kafkajs', security = {} }) =>
  new Kafka({
    clientId,
    ...securityOf(security),
    brokers: servers.split(','),
    logLevel: logLevel.NOTHING,
    retry: { initialRetryTime: 20, maxRetryTime: 500, retries: 60 },
  })

const COMPRESSION = { none: CompressionTypes.None, gzip: CompressionTypes.GZIP, snappy: CompressionTypes.Snappy }

const transactional = async (kafka, transactionalId) => {
  const producer = kafka.producer({ transactionalId, idempotent: true, maxInFlightRequests: 1 })
  await producer.connect()
  return producer
}

const withProducer = async (producer, use) => {
  await producer.connect()
  try {
    return await use(producer)
  } finally {
    await producer.disconnect()
  }
}

const withAdmin = async (input, use) => {
  const admin = client(input).admin()
  await admin.connect()
  try {
    return await use(admin)
  } finally {
    await admin.disconnect()
  }
}

const text = (value) => (value === null || value === undefined ? null : value.toString())
const textOfAll = (headers) =>
  Object.fromEntries(Object.entries(headers).map(([name, value]) => [name, text(value)]))

// Reads with a group until there are `count` records, and commits after each.
const consume = async (input) => {
  const { topic, group, count, committed = false } = input
  const consumer = client(input).consumer({
    groupId: group,
    readUncommitted: !committed,
    maxWaitTimeInMs: 50,
    sessionTimeout: 10000,
    heartbeatInterval: 200,
  })
  await consumer.connect()
  await consumer.subscribe({ topic, fromBeginning: true })
  const seen = []
  let done
  const enough = new Promise((resolve) => (done = resolve))
  await consumer.run({
    autoCommit: false,
    eachMessage: async ({ partition, message }) => {
      seen.push({
        partition,
        offset: Number(message.offset),
        key: text(message.key),
        value: text(message.value),
        headers: textOfAll(message.headers),
        timestamp_ms: Number(message.timestamp),
      })
      await consumer.commitOffsets([{ topic, partition, offset: String(Number(message.offset) + 1) }])
      if (seen.length >= count) done()
    },
  })
  await enough
  await consumer.disconnect()
  return seen
}

const cases = {
  async produce({ topic, values, key, header, timestampMs, codec = 'none', acks = -1, idempotent = false, ...input }) {
    const common = { key, headers: header && { h: header }, timestamp: timestampMs && String(timestampMs) }
    const messages = values.map((value) => ({ ...common, value }))
    const producer = client(input).producer({ idempotent, maxInFlightRequests: 1 })
    return withProducer(producer, async () => producer.send({ topic, messages, acks, compression: COMPRESSION[codec] }))
  },

  consume,

  // Sends each of `transactions` ({ values, commit }) with one producer.
  async transactions({ topic, transactionalId, transactions, ...input }) {
    const producer = await transactional(client(input), transactionalId)
    for (const { values, commit } of transactions) {
      const transaction = await producer.transaction()
      await transaction.send({ topic, messages: values.map((value) => ({ value, partition: 0 })) })
      await (commit ? transaction.commit() : transaction.abort())
    }
    await producer.disconnect()
  },

  // Leaves a transaction open, and says what the consumers of both isolation levels may see.
  async openTransaction({ topic, transactionalId, value, ...input }) {
    const producer = await transactional(client(input), transactionalId)
    const transaction = await producer.transaction()
    await transaction.send({ topic, messages: [{ value, partition: 0 }] })
    const seen = await consume({ ...input, topic, group: `${topic}-readers`, count: 1 })
    await transaction.commit()
    await producer.disconnect()
    return seen.map((message) => message.value)
  },

  // Two producers of one transactional id; the error of the first one's commit.
  async fencing({ topic, transactionalId, ...input }) {
    const first = await transactional(client(input), transactionalId)
    const old = await first.transaction()
    await old.send({ topic, messages: [{ value: 'of the first', partition: 0 }] })
    const second = await transactional(client(input), transactionalId)
    const transaction = await second.transaction()
    await transaction.send({ topic, messages: [{ value: 'of the second', partition: 0 }] })
    await transaction.commit()
    let refusal = null
    try {
      await old.commit()
    } catch (error) {
      refusal = error.type || error.name
    }
    await first.disconnect()
    await second.disconnect()
    return refusal
  },

  // A transaction that moves a group without members.
  async offsets({ topic, transactionalId, group, offset, commit, ...input }) {
    const producer = await transactional(client(input), transactionalId)
    const transaction = await producer.transaction()
    const topics = [{ topic, partitions: [{ partition: 0, offset: String(offset) }] }]
    await transaction.sendOffsets({ consumerGroupId: group, topics })
    await (commit ? transaction.commit() : transaction.abort())
    await producer.disconnect()
  },

  // Two members one after the other; the partitions of each once both are in.
  async members({ topic, group, partitions, ...input }) {
    const assigned = {}
    const consumers = []
    for (const name of ['a', 'b']) {
      const consumer = client({ ...input, clientId: name }).consumer({
        groupId: group,
        heartbeatInterval: 100,
        maxWaitTimeInMs: 50, // it tells the broker that it lives between fetches only
      })
      consumer.on(consumer.events.GROUP_JOIN, ({ payload }) => {
        assigned[name] = payload.memberAssignment[topic] || []
      })
      await consumer.connect()
      await consumer.subscribe({ topic })
      await consumer.run({ eachMessage: async () => {} })
      consumers.push(consumer)
    }
    const isShared = () =>
      Object.values(assigned).length === 2 && Object.values(assigned).flat().length === partitions
    while (!isShared()) await new Promise((resolve) => setTimeout(resolve, 20))
    const result = Object.values(assigned).map((each) => each.length)
    await Promise.all(consumers.map((consumer) => consumer.disconnect()))
    return result
  },

  // Copies `count` records from one topic to another, each transaction with its offsets; every third one is aborted
  // and done again.
  async copy({ topic: source, target, transactionalId, group, count, size, ...input }) {
    let number = 0
    let problems = 0
    const kafka = client(input)
    const committedOffset = async () => {
      for (;;) {
        try {
          return await withAdmin(input, async (admin) => {
            const [fetched] = await admin.fetchOffsets({ groupId: group, topics: [source] })
            return Math.max(0, Number(fetched.partitions[0].offset))
          })
        } catch (error) {
          problems += 1 // the broker may be away
        }
      }
    }
    for (;;) {
      const start = await committedOffset()
      if (start >= count) return { transactions: number, problems }
      const values = Array.from({ length: Math.min(size, count - start) }, (_, index) => String(start + index))
      const producer = kafka.producer({ transactionalId, idempotent: true, maxInFlightRequests: 1 })
      try {
        await producer.connect()
        const transaction = await producer.transaction()
        number += 1
        await transaction.send({ topic: target, messages: values.map((value) => ({ value, partition: 0 })) })
        const offset = String(start + values.length)
        const topics = [{ topic: source, partitions: [{ partition: 0, offset }] }]
        await transaction.sendOffsets({ consumerGroupId: group, topics })
        await (number % 3 === 0 ? transaction.abort() : transaction.commit())
      } catch (error) {
        problems += 1 // what became of it is what the group's offset says
      } finally {
        await producer.disconnect().catch(() => {})
      }
    }
  },

  async topics({ topic, ...input }) {
    return withAdmin(input, async (admin) => {
      const created = await admin.createTopics({
        waitForLeaders: true,
        topics: [{ topic, numPartitions: 2, configEntries: [{ name: 'retention.ms', value: '60000' }] }],
      })
      const again = await admin.createTopics({ topics: [{ topic, numPartitions: 2 }] })
      const listed = (await admin.listTopics()).includes(topic)
      await admin.createPartitions({ topicPartitions: [{ topic, count: 4 }] })
      let metadata
      do {
        metadata = await admin.fetchTopicMetadata({ topics: [topic] })
      } while (metadata.topics[0].partitions.length !== 4)
      await admin.deleteTopics({ topics: [topic] })
      let left = true
      while (left) left = (await admin.listTopics()).includes(topic)
      return { created, again, listed, partitions: metadata.topics[0].partitions.length }
    })
  },

  async settings({ topic, ...input }) {
    return withAdmin(input, async (admin) => {
      const resource = { type: kafkajs.ConfigResourceTypes.TOPIC, name: topic }
      const value = async () => {
        const described = await admin.describeConfigs({
          includeSynonyms: false,
          resources: [{ ...resource, configNames: ['retention.ms'] }],
        })
        const [entry] = described.resources[0].configEntries
        return [entry.configValue, entry.isDefault]
      }
      const before = await value()
      await admin.alterConfigs({ resources: [{ ...resource, configEntries: [{ name: 'retention.ms', value: '5000' }] }] })
      return [before, await value()]
    })
  },

  async offsetsAndRecords({ topic, ...input }) {
    return withAdmin(input, async (admin) => {
      const offsets = async () => {
        const [{ low, high }] = await admin.fetchTopicOffsets(topic)
        return [Number(low), Number(high)]
      }
      const before = await offsets()
      await admin.deleteTopicRecords({ topic, partitions: [{ partition: 0, offset: '2' }] })
      return [before, await offsets()]
    })
  },

  async groups({ topic, group, ...input }) {
    return withAdmin(input, async (admin) => {
      await admin.setOffsets({ groupId: group, topic, partitions: [{ partition: 0, offset: '2' }] })
      const listed = (await admin.listGroups()).groups.some(({ groupId }) => groupId === group)
      const { groups } = await admin.describeGroups([group])
      const [fetched] = await admin.fetchOffsets({ groupId: group, topics: [topic] })
      await admin.deleteGroups([group])
      const left = (await admin.listGroups()).groups.some(({ groupId }) => groupId === group)
      return { listed, state: groups[0].state, offset: Number(fetched.partitions[0].offset), left }
    })
  },

  // Adds a rule, looks for it, and removes it again.
  async rules({ topic, principal, ...input }) {
    return withAdmin(input, async (admin) => {
      const { AclResourceTypes, AclOperationTypes, AclPermissionTypes, ResourcePatternTypes } = kafkajs
      const rule = {
        resourceType: AclResourceTypes.TOPIC,
        resourceName: topic,
        resourcePatternType: ResourcePatternTypes.LITERAL,
        principal,
        host: '*',
        operation: AclOperationTypes.WRITE,
        permissionType: AclPermissionTypes.ALLOW,
      }
      const count = async () => {
        const { resources } = await admin.describeAcls(rule)
        return resources.flatMap(({ acls }) => acls).length
      }
      await admin.createAcls({ acl: [rule] })
      let there = 0
      while (there === 0) there = await count()
      await admin.deleteAcls({ filters: [rule] })
      let left = 1
      while (left > 0) left = await count()
      return [there, left]
    })
  },

  async cluster(input) {
    return withAdmin(input, async (admin) => {
      const { brokers, controller, clusterId } = await admin.describeCluster()
      return { brokers: brokers.map(({ host, port }) => `${host}:${port}`), controller, clusterId }
    })
  },
}

readline.createInterface({ input: process.stdin }).on('line', async (line) => {
  const { id, case: name, ...input } = JSON.parse(line)
  let answer
  try {
    answer = { id, result: await cases[name](input) }
  } catch (error) {
    answer = { id, error: { name: error.type || error.name, message: error.message } }
  }
  process.stdout.write(`${JSON.stringify(answer)}\n`)
})
