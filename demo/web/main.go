// Command web is the demo's program: it responds to every request with a greeting and the name of the pod it runs in. With a URL as
// argument it requests that instead and prints the response.
package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log"
	"net/http"
	"os"
	"os/signal"
	"syscall"
	"time"
)

// drainTime is for how long the program still responds when it is told to end. Until then requests arrive from nodes that do not know yet that the pod is to
// end, and clients that keep connections open are told to close them. It is shorter than the pod's grace period.
const drainTime = 5 * time.Second

func main() {
	if len(os.Args) > 1 {
		if err := get(os.Args[1]); err != nil {
			log.Fatal(err)
		}
		return
	}
	if err := serve(); err != nil {
		log.Fatal(err)
	}
}

func serve() error {
	host, err := os.Hostname()
	if err != nil {
		return err
	}
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM, syscall.SIGINT)
	defer stop()
	http.HandleFunc("/healthz", func(http.ResponseWriter, *http.Request) {})
	http.HandleFunc("/", func(w http.ResponseWriter, r *http.Request) {
		log.Printf("%s %s from %s", r.Method, r.URL.Path, r.RemoteAddr)
		if ctx.Err() != nil {
			w.Header().Set("Connection", "close")
		}
		fmt.Fprintf(w, "%s, says %s\n", os.Getenv("GREETING"), host)
	})
	server := &http.Server{Addr: ":8080", ReadHeaderTimeout: 5 * time.Second}
	ended := make(chan error)
	go func() {
		<-ctx.Done()
		stop() // a second signal ends the program at once
		log.Printf("%s ends in %s", host, drainTime)
		time.Sleep(drainTime)
		ended <- server.Shutdown(context.Background())
	}()
	log.Printf("%s listens on %s", host, server.Addr)
	if err := server.ListenAndServe(); !errors.Is(err, http.ErrServerClosed) {
		return err
	}
	return <-ended
}

// get tries for ten seconds: the first request may be sooner than the Service's endpoints.
func get(url string) (err error) {
	client := http.Client{Timeout: time.Second}
	for range 10 {
		var response *http.Response
		if response, err = client.Get(url); err == nil {
			defer response.Body.Close()
			_, err = io.Copy(os.Stdout, response.Body)
			return err
		}
		time.Sleep(time.Second)
	}
	return err
}
