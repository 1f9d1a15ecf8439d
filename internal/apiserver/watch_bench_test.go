package apiserver

import (
	"bufio"
	"context"
	"crypto/tls"
	"encoding/binary"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"strconv"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/sys/unix"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"

	"skiff/internal/http2"
	"skiff/internal/kind"
)

// The watchers of BenchmarkWatchOverHTTP2 and the connections they share.
const (
	benchWatchers    = 200
	benchConnections = 8
)

// The watchers run in a process of their own, so that the server's CPU time can be told from theirs. These variables tell the process
// what to watch, which media type to accept and how many events to expect.
const (
	benchURL    = "SKIFF_BENCH_WATCH_URL"
	benchAccept = "SKIFF_BENCH_WATCH_ACCEPT"
	benchEvents = "SKIFF_BENCH_WATCH_EVENTS"
)

func TestMain(m *testing.M) {
	if url := os.Getenv(benchURL); url != "" {
		if err := runBenchWatchers(url); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		return
	}
	os.Exit(m.Run())
}

// runBenchWatchers watches pods and decodes the events, as informers do. It writes a line when all watches are open and one when all
// events have arrived.
func runBenchWatchers(url string) error {
	want, err := strconv.ParseInt(os.Getenv(benchEvents), 10, 64)
	if err != nil {
		return err
	}
	var seen atomic.Int64
	failed := make(chan error, benchWatchers)
	for connection := range benchConnections {
		transport := &http.Transport{TLSClientConfig: &tls.Config{InsecureSkipVerify: true}, ForceAttemptHTTP2: true}
		for range benchWatchers / benchConnections {
			req, err := http.NewRequest(http.MethodGet, url, nil)
			if err != nil {
				return err
			}
			req.Header = http.Header{"Authorization": {"Bearer admin"}, "Accept": {os.Getenv(benchAccept)}}
			resp, err := transport.RoundTrip(req)
			if err != nil || resp.StatusCode != http.StatusOK || resp.ProtoMajor != 2 {
				return fmt.Errorf("watch on connection %d: %v, %v", connection, resp, err)
			}
			decode := decodeJSONEvent
			if os.Getenv(benchAccept) != mediaJSON {
				decode = decodeProtobufEvent
			}
			go func() {
				body := bufio.NewReader(resp.Body)
				for {
					if err := decode(body); err != nil {
						failed <- err
						return
					}
					if seen.Add(1) == want {
						failed <- nil
						return
					}
				}
			}()
		}
	}
	fmt.Println("open")
	if err := <-failed; err != nil {
		return err
	}
	fmt.Println("received")
	return nil
}

func decodeJSONEvent(from *bufio.Reader) error {
	line, err := from.ReadBytes('\n')
	if err != nil {
		return err
	}
	var event metav1.WatchEvent
	if err := json.Unmarshal(line, &event); err != nil {
		return err
	}
	return json.Unmarshal(event.Object.Raw, &corev1.Pod{})
}

func decodeProtobufEvent(from *bufio.Reader) error {
	var length [4]byte
	if _, err := io.ReadFull(from, length[:]); err != nil {
		return err
	}
	frame := make([]byte, binary.BigEndian.Uint32(length[:]))
	if _, err := io.ReadFull(from, frame); err != nil {
		return err
	}
	var event metav1.WatchEvent
	if err := event.Unmarshal(frame); err != nil {
		return err
	}
	var envelope runtime.Unknown
	if err := envelope.Unmarshal(event.Object.Raw[4:]); err != nil {
		return err
	}
	return (&corev1.Pod{}).Unmarshal(envelope.Raw)
}

// BenchmarkWatchOverHTTP2 sends one event after the other to 200 watchers over eight connections with TLS, and reports the CPU time of
// the server for each event that a watcher receives.
func BenchmarkWatchOverHTTP2(b *testing.B) {
	for _, accept := range []string{mediaJSON, mediaProtobuf + ";stream=watch"} {
		b.Run(accept, func(b *testing.B) {
			s := newTestServer(b)
			start := s.add("pods", benchPod(1)).Revision() // watches from there miss no event
			server := httptest.NewUnstartedServer(s.Handler())
			server.EnableHTTP2 = true
			server.TLS = &tls.Config{DynamicRecordSizingDisabled: true}
			http2.Configure(server.Config)
			server.Listener = http2.Listener(server.Listener)
			server.StartTLS()
			defer server.Close()
			ctx, cancel := context.WithTimeout(context.Background(), 5*time.Minute)
			defer cancel()
			watchers := exec.CommandContext(ctx, os.Args[0])
			watchers.Env = append(os.Environ(), fmt.Sprint(benchURL, "=", server.URL, "/api/v1/pods?watch=true&resourceVersion=", start), benchAccept+"="+accept, fmt.Sprint(benchEvents, "=", benchWatchers*b.N))
			watchers.Stderr = os.Stderr
			output, err := watchers.StdoutPipe()
			if err != nil {
				b.Fatal(err)
			}
			if err := watchers.Start(); err != nil {
				b.Fatal(err)
			}
			lines := bufio.NewScanner(output)
			if !lines.Scan() {
				b.Fatal("the watchers did not start")
			}
			before := processCPU(b)
			b.ResetTimer()
			for i := range b.N {
				s.change("pods", "ns-1", "web-6f7c9d7f4-00001", func(obj kind.Object) { obj.SetGeneration(int64(i + 5)) })
				for s.deliveredEvents(b, "pods") < benchWatchers*(i+1) {
					time.Sleep(time.Millisecond)
				}
			}
			if !lines.Scan() {
				b.Fatal("not all events arrived")
			}
			b.StopTimer()
			b.ReportMetric(float64((processCPU(b)-before).Nanoseconds())/float64(benchWatchers*b.N), "cpu-ns/event")
			if err := watchers.Wait(); err != nil {
				b.Fatal(err)
			}
		})
	}
}

// processCPU is the CPU time that this process has used.
func processCPU(b *testing.B) time.Duration {
	var usage unix.Rusage
	if err := unix.Getrusage(unix.RUSAGE_SELF, &usage); err != nil {
		b.Fatal(err)
	}
	return time.Duration(usage.Utime.Nano() + usage.Stime.Nano())
}
