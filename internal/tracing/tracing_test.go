package tracing

import (
	"context"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/trace"
	"google.golang.org/grpc/metadata"
	tracingapi "k8s.io/component-base/tracing/api/v1"

	"skiff/internal/tracing/tracingtest"
)

// export makes a provider, records spans with it and exports them.
func export(t *testing.T, endpoint string, rate *int32, record func(*Provider)) {
	t.Helper()
	p, err := New(t.Context(), &tracingapi.TracingConfiguration{Endpoint: &endpoint, SamplingRatePerMillion: rate}, Options{Service: "apiserver", InstanceID: "a"})
	if err != nil {
		t.Fatal(err)
	}
	record(p)
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if err := p.Run(ctx); err != nil {
		t.Fatal(err)
	}
}

const traceID = "0af7651916cd43dd8448eb211c80319c"

// requestWith has the headers of a client that records or does not record its own span.
func requestWith(t *testing.T, flags string) *http.Request {
	r, err := http.NewRequestWithContext(t.Context(), http.MethodGet, "https://server/", nil)
	if err != nil {
		t.Fatal(err)
	}
	if flags != "" {
		r.Header.Set("Traceparent", "00-"+traceID+"-b7ad6b7169203331-"+flags)
	}
	return r
}

// Spans arrive at the collector: a trusted client's span is the parent, another one's is linked, and sampling follows the parent or the rate.
func TestExport(t *testing.T) {
	collector := tracingtest.Start(t)
	endpoint := collector.Endpoint
	began := time.Now().Add(-time.Second)
	request := func(p *Provider, name, flags string, trusted bool) {
		ctx, span := p.StartRequest(requestWith(t, flags), name, began, trusted)
		_, child := Start(ctx, name+" child", attribute.String("key", "value"))
		child.End()
		span.End()
	}
	export(t, endpoint, new(int32(maxSamplingRate)), func(p *Provider) {
		request(p, "plain", "", true)
		request(p, "trusted", "01", true)
		request(p, "untrusted", "01", false)
		request(p, "unsampled parent", "00", true)
	})
	export(t, endpoint, nil, func(p *Provider) {
		request(p, "never", "", true)
		request(p, "sampled by the parent", "01", true)
		request(p, "not by an untrusted parent", "01", false)
	})
	spans := collector.Spans()
	for name, sampled := range map[string]bool{
		"plain": true, "trusted": true, "untrusted": true, "unsampled parent": false, "never": false, "sampled by the parent": true, "not by an untrusted parent": false,
	} {
		span, child := spans[name], spans[name+" child"]
		if (span != nil) != sampled || (child != nil) != sampled {
			t.Errorf("%s: span %v, child %v", name, span != nil, child != nil)
			continue
		}
		if !sampled {
			continue
		}
		if string(child.ParentSpanId) != string(span.SpanId) || len(child.Attributes) != 1 {
			t.Errorf("%s: child %v of %v", name, child, span)
		}
		inTrace := strings.EqualFold(traceID, hexOf(span.TraceId))
		if wantTrace := name == "trusted" || name == "sampled by the parent"; inTrace != wantTrace {
			t.Errorf("%s is in the client's trace: %v", name, inTrace)
		}
		if linked := len(span.Links) == 1; linked != (name == "untrusted") {
			t.Errorf("%s: links %v", name, span.Links)
		}
		if took := time.Duration(span.EndTimeUnixNano - span.StartTimeUnixNano); took < time.Second {
			t.Errorf("%s took %v", name, took)
		}
	}
	if service := collector.Service("plain"); service != "apiserver" {
		t.Errorf("service %q", service)
	}
}

func hexOf(id []byte) string {
	var t trace.TraceID
	copy(t[:], id)
	return t.String()
}

// A call of another server is below the span of its context, and the server is told about it. Requests to a handler have spans as well.
func TestCallsAndHandlers(t *testing.T) {
	collector := tracingtest.Start(t)
	export(t, collector.Endpoint, new(int32(maxSamplingRate)), func(p *Provider) {
		ctx, span := p.StartInternal(t.Context(), "sync")
		called, call := StartCall(ctx, "runtime.v1.RuntimeService/Version")
		if sent, _ := metadata.FromOutgoingContext(called); !strings.Contains(strings.Join(sent.Get("traceparent"), ""), span.SpanContext().TraceID().String()) {
			t.Errorf("metadata %v", sent)
		}
		call.End()
		span.End()
		p.Handler(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
			if !trace.SpanFromContext(r.Context()).IsRecording() {
				t.Error("the request has no span")
			}
		}), "kubelet").ServeHTTP(nil, requestWith(t, ""))
	})
	spans := collector.Spans()
	if call := spans["runtime.v1.RuntimeService/Version"]; call == nil || spans["sync"] == nil || string(call.ParentSpanId) != string(spans["sync"].SpanId) {
		t.Errorf("call %v", call)
	}
	if spans["kubelet"] == nil {
		t.Error("no span of the request")
	}
	if ctx, span := StartCall(t.Context(), "method"); ctx != t.Context() || span.IsRecording() {
		t.Error("a call without a parent is recorded")
	}
}

// Without a collector spans are dropped: recording does not wait, and the process ends.
func TestNoCollector(t *testing.T) {
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	endpoint := listener.Addr().String()
	listener.Close()
	export(t, endpoint, new(int32(maxSamplingRate)), func(p *Provider) {
		for range 10_000 {
			_, span := p.StartInternal(t.Context(), "span")
			span.End()
		}
	})
}

// Nothing is recorded without a provider or a span.
func TestNothing(t *testing.T) {
	var p *Provider
	ctx, span := p.StartInternal(t.Context(), "span")
	if span.IsRecording() || ctx != t.Context() {
		t.Error("a nil provider records")
	}
	if after, span := Start(ctx, "child"); span.IsRecording() || after != ctx {
		t.Error("a child without a parent is recorded")
	}
	done, cancel := context.WithCancel(t.Context())
	cancel()
	if err := p.Run(done); err != nil {
		t.Error(err)
	}
}

func TestReadConfiguration(t *testing.T) {
	file := filepath.Join(t.TempDir(), "tracing.yaml")
	const prefix = "apiVersion: apiserver.config.k8s.io/v1\nkind: TracingConfiguration\n"
	for text, want := range map[string]string{
		prefix: "",
		prefix + "endpoint: localhost:4317\nsamplingRatePerMillion: 100\n": "",
		strings.Replace(prefix, "/v1", "/v1beta1", 1):                      "",
		prefix + "endpoint: unix:///run/otel.sock\n":                       "",
		prefix + "endpoint: http://localhost:4317\n":                       "endpoint: Invalid value",
		prefix + "samplingRatePerMillion: 1000001\n":                       "samplingRatePerMillion: Invalid value: 1000001",
		prefix + "samplingRatePerMillion: -1\n":                            "samplingRatePerMillion: Invalid value: -1",
		prefix + "rate: 1\n":                                               "unknown field",
		strings.Replace(prefix, "Tracing", "Other", 1):                     `"OtherConfiguration" of "apiserver.config.k8s.io/v1" is not a TracingConfiguration`,
		strings.Replace(prefix, "/v1", "/v2", 1):                           "is not a TracingConfiguration",
	} {
		if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		_, err := ReadConfiguration(file)
		if (err == nil) != (want == "") || err != nil && !strings.Contains(err.Error(), want) {
			t.Errorf("%s: error %v, want %q", text, err, want)
		}
	}
	if _, err := ReadConfiguration(file + ".none"); err == nil {
		t.Error("a file that does not exist is read")
	}
}
