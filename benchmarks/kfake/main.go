// Command kfake runs franz-go's fake cluster for the comparison in benchmarks/broker.py: it prints the bootstrap
// address alone on one line once it serves, and ends when its standard input does.
package main

import (
	"fmt"
	"io"
	"os"

	"github.com/twmb/franz-go/pkg/kfake"
)

func main() {
	cluster, err := kfake.NewCluster(kfake.NumBrokers(1), kfake.SeedTopics(4, os.Args[1:]...))
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	defer cluster.Close()
	fmt.Println(cluster.ListenAddrs()[0])
	io.Copy(io.Discard, os.Stdin)
}
