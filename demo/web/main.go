// Command web is the demo's program: it responds to every request with a greeting and the name of the pod it runs in. With a URL as
// argument it requests that instead and prints the response.
package main

import (
	"fmt"
	"io"
	"log"
	"net/http"
	"os"
	"time"
)

func main() {
	if len(os.Args) > 1 {
		if err := get(os.Args[1]); err != nil {
			log.Fatal(err)
		}
		return
	}
	log.Fatal(serve())
}

func serve() error {
	host, err := os.Hostname()
	if err != nil {
		return err
	}
	http.HandleFunc("/", func(w http.ResponseWriter, r *http.Request) {
		log.Printf("%s %s from %s", r.Method, r.URL.Path, r.RemoteAddr)
		fmt.Fprintf(w, "%s, says %s\n", os.Getenv("GREETING"), host)
	})
	server := &http.Server{Addr: ":8080", ReadHeaderTimeout: 5 * time.Second}
	log.Printf("%s listens on %s", host, server.Addr)
	return server.ListenAndServe()
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
