// Command web is the demo's program: it responds to every request with a greeting and the name of the pod it runs in.
package main

import (
	"fmt"
	"log"
	"net/http"
	"os"
	"time"
)

func main() {
	host, err := os.Hostname()
	if err != nil {
		log.Fatal(err)
	}
	http.HandleFunc("/", func(w http.ResponseWriter, r *http.Request) {
		log.Printf("%s %s from %s", r.Method, r.URL.Path, r.RemoteAddr)
		fmt.Fprintf(w, "%s, says %s\n", os.Getenv("GREETING"), host)
	})
	server := &http.Server{Addr: ":8080", ReadHeaderTimeout: 5 * time.Second}
	log.Printf("%s listens on %s", host, server.Addr)
	log.Fatal(server.ListenAndServe())
}
