// What the programs of the clients in Go have in common. One JSON object on a line of standard input runs a case, and its
// result is one on a line of standard output; case_program.py is the other side. Each program's `main.go` has its `cases`,
// and `nameOf`, which names an error.
package main

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"os"
	"sync"
	"time"
)

// input is what the cases are given; each uses what it needs.
type input struct {
	ID              int
	Case            string
	Servers         string
	Topic           string
	Target          string
	Group           string
	TransactionalID string
	Values          []string
	Codec           string
	Count           int
	Size            int
	Partitions      int
	Committed       bool
	ConsumerGroups  bool
	Key             string
	Header          string
	Security        *security
	TimestampMs     int64
	Offset          int64
	Commit          bool
	Transactions    []struct {
		Values []string
		Commit bool
	}
}

// security is how a broker wants its clients to come in.
type security struct {
	Authority, Certificate, Key   string
	Mechanism, Username, Password string
}

type seen struct {
	Partition   int               `json:"partition"`
	Offset      int64             `json:"offset"`
	Key         *string           `json:"key"`
	Value       *string           `json:"value"`
	Headers     map[string]string `json:"headers"`
	TimestampMs int64             `json:"timestamp_ms"`
}

func text(value []byte) *string {
	if value == nil {
		return nil
	}
	made := string(value)
	return &made
}

// shares are the numbers of partitions that two members have.
type shares struct {
	lock   sync.Mutex
	counts [2]int
}

func (s *shares) change(index int, to func(int) int) {
	s.lock.Lock()
	defer s.lock.Unlock()
	s.counts[index] = to(s.counts[index])
}

// wait returns them once both members are in.
func (s *shares) wait(ctx context.Context, partitions int) ([2]int, error) {
	for ctx.Err() == nil {
		s.lock.Lock()
		current := s.counts
		s.lock.Unlock()
		if current[0] > 0 && current[1] > 0 && current[0]+current[1] == partitions {
			return current, nil
		}
		time.Sleep(10 * time.Millisecond)
	}
	return [2]int{}, ctx.Err()
}

// codeOf is the broker's error code; -2 for an error of the client itself.
func codeOf[E interface {
	~int | ~int16
	error
}](err error) int {
	var code E
	switch {
	case err == nil:
		return 0
	case errors.As(err, &code):
		return int(code)
	default:
		return -2
	}
}

func main() {
	lines := bufio.NewScanner(os.Stdin)
	lines.Buffer(nil, 64<<20)
	answers := json.NewEncoder(os.Stdout)
	var lock sync.Mutex
	for lines.Scan() {
		var in input
		if err := json.Unmarshal(lines.Bytes(), &in); err != nil {
			panic(err)
		}
		go func() {
			ctx, cancel := context.WithTimeout(context.Background(), 100*time.Second)
			defer cancel()
			answer := map[string]any{"id": in.ID}
			if result, err := cases[in.Case](ctx, in); err != nil {
				answer["error"] = map[string]string{"name": nameOf(err), "message": err.Error()}
			} else {
				answer["result"] = result
			}
			lock.Lock()
			defer lock.Unlock()
			if err := answers.Encode(answer); err != nil {
				panic(err)
			}
		}()
	}
}
