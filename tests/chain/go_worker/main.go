// One process of the chain with the official Go client: works on all hops of its chain until SIGTERM, or until it is killed.
//
//	program PHASE.json WORKER INCARNATION FOLDER SERVICE_URL
//
// As ChainWorker.java: receive some messages, send what is made of each without waiting and acknowledge each, wait for all answers,
// commit; abort when one failed, and one time in five in any case. This client acknowledges a batch with the last message of it, in the
// transaction of that one; told to acknowledge each message, it names all that it has named before, which conflicts. So a transaction
// goes on to the end of the batch that it has begun, and no other client may have taken a part of it.
package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"hash/crc32"
	"math/rand"
	"os"
	"os/signal"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"time"
	_ "unsafe" // for the clock

	"github.com/apache/pulsar-client-go/pulsar"
	"github.com/apache/pulsar-client-go/pulsar/log"
	"github.com/sirupsen/logrus"
)

const (
	receiverQueue = 1000
	aborted       = 0.2
	wait          = 200 * time.Millisecond
	timeout       = 2 * time.Second
	again         = 200 * time.Millisecond
	answer        = 15 * time.Second
	sending       = 5 * time.Second
	subscription  = "workers"
)

var (
	taken   = []int{1, 2, 3, 5, 12}
	modes   = map[string]pulsar.SubscriptionType{"Exclusive": pulsar.Exclusive, "Failover": pulsar.Failover, "Shared": pulsar.Shared, "Key_Shared": pulsar.KeyShared}
	stopped atomic.Bool
)

// The monotonic clock of the machine, which all processes of a run share.
//
//go:linkname nanotime runtime.nanotime
func nanotime() int64

type fields map[string]any

type phase struct {
	Chains []struct {
		Name string
		Hops []hopPlan
	}
	Workers []struct {
		Name, Chain string
		Seed        int64
	}
}

type hopPlan struct {
	Source, Target, Mode string
	Batched              bool
	NextMode             string `json:"next_mode"`
}

type payload struct {
	Producer string          `json:"producer"`
	Epoch    int             `json:"epoch"`
	Txn      *string         `json:"txn"`
	I        int             `json:"i"`
	N        int             `json:"n"`
	Parts    json.RawMessage `json:"parts"`
	Seq      int             `json:"seq"`
	Inputs   json.RawMessage `json:"inputs"`
	Crc      uint32          `json:"crc"`
	Root     json.RawMessage `json:"root"`
	Key      string          `json:"key"`
}

// history of this process; see history_format.py.
type history struct {
	sync.Mutex
	process string
	file    *os.File
	next    int
	open    map[int]string
}

func (h *history) invoke(f string, value fields) int {
	h.Lock()
	defer h.Unlock()
	op := h.next
	h.next++
	h.open[op] = f
	h.write(f, "invoke", &op, value)
	return op
}

func (h *history) complete(op int, err error, value fields) {
	h.Lock()
	defer h.Unlock()
	kind := "ok"
	if err != nil {
		kind, value = "info", fields{"error": err.Error()}
	}
	f := h.open[op]
	delete(h.open, op)
	h.write(f, kind, &op, value)
}

func (h *history) event(f string, value fields) {
	h.Lock()
	defer h.Unlock()
	h.write(f, "ok", nil, value)
}

func (h *history) write(f, kind string, op *int, value fields) {
	if value == nil {
		value = fields{}
	}
	line := fields{"t_mono_ns": nanotime(), "process": h.process, "f": f, "type": kind, "value": value}
	if op != nil {
		line["op"] = *op
	}
	if _, err := h.file.Write(append(encoded(line), '\n')); err != nil {
		panic(err)
	}
}

type hop struct {
	client       pulsar.Client
	history      *history
	plan         hopPlan
	random       *rand.Rand
	name         string
	transactions int
	seqs         map[string]int
}

func (h *hop) source(more fields) fields {
	found := fields{"topic": h.plan.Source, "partition": -1, "subscription": subscription, "consumer": h.name}
	for name, value := range more {
		found[name] = value
	}
	return found
}

func (h *hop) run() {
	for !stopped.Load() {
		if err := h.work(); err != nil {
			fmt.Fprintln(os.Stderr, h.name, err)
			time.Sleep(again)
		}
	}
}

func (h *hop) work() error {
	op := h.history.invoke("subscribe", h.source(fields{"mode": h.plan.Mode, "initial": "earliest"}))
	consumer, err := h.client.Subscribe(pulsar.ConsumerOptions{
		Topic: h.plan.Source, SubscriptionName: subscription, Type: modes[h.plan.Mode], ReceiverQueueSize: receiverQueue,
		SubscriptionInitialPosition: pulsar.SubscriptionPositionEarliest, NackRedeliveryDelay: 100 * time.Millisecond,
	})
	h.history.complete(op, err, nil)
	if err != nil {
		return err
	}
	defer consumer.Close()
	batches := pulsar.DefaultBatchBuilder
	if h.plan.NextMode == "Key_Shared" {
		batches = pulsar.KeyBasedBatchBuilder
	}
	producer, err := h.client.CreateProducer(pulsar.ProducerOptions{
		Topic: h.plan.Target, DisableBatching: !h.plan.Batched, BatcherBuilderType: batches, SendTimeout: sending,
	})
	if err != nil {
		return err
	}
	defer producer.Close()
	for !stopped.Load() {
		messages, inputs, err := h.receive(consumer)
		if err != nil {
			return err
		}
		if len(messages) > 0 {
			// A producer whose message was refused is deaf from then on. A consumer keeps all copies that an abort brings.
			if err := h.transact(consumer, producer, messages, inputs); err != nil {
				return err
			}
		}
	}
	return nil
}

func (h *hop) receive(consumer pulsar.Consumer) (messages []pulsar.Message, inputs []payload, err error) {
	most := taken[h.random.Intn(len(taken))]
	for len(messages) < most || !endsItsBatch(messages[len(messages)-1].ID()) {
		ctx, cancel := context.WithTimeout(context.Background(), wait)
		message, err := consumer.Receive(ctx)
		cancel()
		if errors.Is(err, context.DeadlineExceeded) {
			messages, inputs = whole(messages, inputs)
			break
		}
		if err != nil {
			return nil, nil, err
		}
		var input payload
		if err := json.Unmarshal(message.Payload(), &input); err != nil {
			panic(err)
		}
		h.history.event("deliver", h.source(fields{"reader": nil, "position": h.position(message.ID(), input.Txn == nil),
			"payload": json.RawMessage(message.Payload()), "redeliveries": message.RedeliveryCount()}))
		if message.ID().BatchIdx() <= 0 { // a connection that was lost took the rest of a batch with it; all of it comes again
			messages, inputs = whole(messages, inputs)
		}
		messages, inputs = append(messages, message), append(inputs, input)
	}
	return messages, inputs, nil
}

// The messages up to the end of the last batch that is complete.
func whole(messages []pulsar.Message, inputs []payload) ([]pulsar.Message, []payload) {
	count := len(messages)
	for count > 0 && !endsItsBatch(messages[count-1].ID()) {
		count--
	}
	return messages[:count], inputs[:count]
}

func endsItsBatch(id pulsar.MessageID) bool {
	return id.BatchIdx() < 0 || id.BatchIdx() == id.BatchSize()-1
}

func (h *hop) transact(consumer pulsar.Consumer, producer pulsar.Producer, messages []pulsar.Message, inputs []payload) (unsent error) {
	name := fmt.Sprintf("%s/%s%d", h.history.process, h.name[len(h.name)-1:], h.transactions)
	h.transactions++
	op := h.history.invoke("begin", fields{"txn": name, "timeout_ms": timeout.Milliseconds()})
	txn, err := h.client.NewTransaction(timeout)
	if err != nil {
		h.history.complete(op, err, nil)
		nack(consumer, messages)
		time.Sleep(again)
		return nil
	}
	id := txn.GetTxnID()
	h.history.complete(op, nil, fields{"id": fmt.Sprintf("(%d,%d)", id.MostSigBits, id.LeastSigBits)})
	answers := make(chan error, len(messages))
	sent, acknowledged := 0, 0
	var batch [][]int64
	for number, message := range messages {
		h.send(producer, txn, name, inputs[number], number, len(messages), answers)
		if number == 0 { // the client's tables of participants are not safe while a topic is being registered
			if unsent = <-answers; unsent != nil {
				err = unsent
				break
			}
			answers <- nil
		}
		sent++
		batch = append(batch, h.position(message.ID(), inputs[number].Txn == nil))
		if !endsItsBatch(message.ID()) { // nothing is sent for it now
			if err = consumer.AckWithTxn(message, txn); err != nil {
				break
			}
			continue
		}
		op := h.history.invoke("ack", h.source(fields{"positions": batch, "kind": "individual", "txn": name}))
		err = consumer.AckWithTxn(message, txn)
		h.history.complete(op, err, nil)
		if err != nil {
			break
		}
		acknowledged, batch = number+1, nil
	}
	for range sent {
		if failed := <-answers; failed != nil {
			err, unsent = failed, failed
		}
	}
	h.end(txn, name, err != nil || h.random.Float64() < aborted)
	if err != nil {
		fmt.Fprintln(os.Stderr, name, err)
		nack(consumer, messages[acknowledged:])
		time.Sleep(again) // the client cannot abort it: what it holds conflicts until its time is over
		if h.plan.Mode == "Exclusive" || h.plan.Mode == "Failover" {
			return err
		}
	}
	return unsent
}

func nack(consumer pulsar.Consumer, messages []pulsar.Message) {
	for _, message := range messages {
		consumer.Nack(message)
	}
}

func (h *hop) end(txn pulsar.Transaction, name string, aborts bool) {
	verb, end := "commit", txn.Commit
	if aborts {
		verb, end = "abort", txn.Abort
	}
	op := h.history.invoke(verb, fields{"txn": name})
	ctx, cancel := context.WithTimeout(context.Background(), answer)
	defer cancel()
	err := end(ctx)
	h.history.complete(op, err, nil) // its coordinator has ended it, or will do so at its timeout
	if err != nil {
		fmt.Fprintln(os.Stderr, name, verb, err)
	}
}

func (h *hop) send(producer pulsar.Producer, txn pulsar.Transaction, name string, input payload, number, count int, answers chan error) {
	who := h.name
	if h.plan.Batched { // batches are by key there, so order is kept within a key only
		who += "." + input.Key
	}
	seq := h.seqs[who]
	h.seqs[who]++
	made := payload{Producer: who, Txn: &name, I: number, N: count, Seq: seq, Root: input.Root, Key: input.Key,
		Parts: encoded([]any{[]any{h.plan.Target, -1}}), Inputs: encoded([]any{[]any{input.Producer, input.Seq}})}
	made.Crc = crc32.ChecksumIEEE(encoded(fields{"producer": who, "epoch": 0, "txn": name, "i": number, "n": count, "parts": made.Parts,
		"seq": seq, "inputs": made.Inputs})) // the names of a map come in their order
	op := h.history.invoke("send", fields{"topic": h.plan.Target, "partition": -1, "producer": who, "seq": seq, "txn": name, "payload": made})
	message := &pulsar.ProducerMessage{Payload: encoded(made), Key: input.Key, Transaction: txn}
	producer.SendAsync(context.Background(), message, func(id pulsar.MessageID, _ *pulsar.ProducerMessage, err error) {
		if err == nil && (id == nil || id.LedgerID() < 0) {
			h.history.complete(op, errors.New("the broker had it already"), nil)
		} else if err != nil {
			h.history.complete(op, err, nil)
		} else {
			h.history.complete(op, nil, fields{"position": h.position(id, false)})
		}
		answers <- err
	})
}

// This client does not tell a batch of one message from a message without a batch, as the source sends it.
func (h *hop) position(id pulsar.MessageID, bySource bool) []int64 {
	index := int64(id.BatchIdx())
	if !h.plan.Batched || bySource && id.BatchSize() <= 1 {
		index = -1
	}
	return []int64{id.LedgerID(), id.EntryID(), index}
}

func encoded(value any) []byte {
	found, err := json.Marshal(value)
	if err != nil {
		panic(err)
	}
	return found
}

func connected(url string, logger *logrus.Logger) (pulsar.Client, error) {
	return pulsar.NewClient(pulsar.ClientOptions{URL: url, EnableTransaction: true, OperationTimeout: 10 * time.Second,
		Logger: log.NewLoggerWithLogrus(logger)})
}

func main() {
	asked := make(chan os.Signal, 1)
	signal.Notify(asked, syscall.SIGTERM)
	go func() {
		<-asked
		stopped.Store(true)
	}()
	file, worker, incarnation, folder, url := os.Args[1], os.Args[2], os.Args[3], os.Args[4], os.Args[5]
	content, err := os.ReadFile(file)
	if err != nil {
		panic(err)
	}
	var all phase
	if err := json.Unmarshal(content, &all); err != nil {
		panic(err)
	}
	logger := logrus.New()
	logger.SetLevel(logrus.ErrorLevel)
	client, err := connected(url, logger)
	for err != nil { // it asks for the coordinators at once, and the broker may be away
		fmt.Fprintln(os.Stderr, err)
		time.Sleep(again)
		client, err = connected(url, logger)
	}
	process := worker + "." + incarnation
	out, err := os.OpenFile(folder+"/"+process+".jsonl", os.O_WRONLY|os.O_CREATE|os.O_EXCL|os.O_APPEND, 0o644)
	if err != nil {
		panic(err)
	}
	written := &history{process: process, file: out, open: map[int]string{}}
	var hops sync.WaitGroup
	for _, each := range all.Workers {
		if each.Name != worker {
			continue
		}
		for _, chain := range all.Chains {
			for number, plan := range chain.Hops {
				if chain.Name != each.Chain {
					continue
				}
				times, _ := strconv.ParseInt(incarnation, 10, 64)
				random := rand.New(rand.NewSource(each.Seed*31 + times*7 + int64(number)))
				name := process + "." + plan.Source[strings.LastIndex(plan.Source, "-")+1:]
				work := &hop{client: client, history: written, plan: plan, random: random, name: name, seqs: map[string]int{}}
				hops.Add(1)
				go func() {
					defer hops.Done()
					work.run()
				}()
			}
		}
	}
	hops.Wait()
	client.Close()
	written.complete(written.invoke("close", nil), nil, nil)
}
