// Package tracingtest is a collector of traces for tests.
package tracingtest

import (
	"context"
	"maps"
	"net"
	"sync"
	"testing"

	collectorpb "go.opentelemetry.io/proto/otlp/collector/trace/v1"
	tracepb "go.opentelemetry.io/proto/otlp/trace/v1"
	"google.golang.org/grpc"
)

// Collector receives spans over OTLP and gRPC.
type Collector struct {
	collectorpb.UnimplementedTraceServiceServer
	// Endpoint is the address of the collector.
	Endpoint string

	mu    sync.Mutex
	spans map[string]*tracepb.Span
	// services are the names in the resources of the spans, by span.
	services map[string]string
}

// Start starts a collector that stops at the end of the test.
func Start(t testing.TB) *Collector {
	t.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	c := &Collector{Endpoint: listener.Addr().String(), spans: map[string]*tracepb.Span{}, services: map[string]string{}}
	server := grpc.NewServer()
	collectorpb.RegisterTraceServiceServer(server, c)
	go func() { _ = server.Serve(listener) }()
	t.Cleanup(server.Stop)
	return c
}

// Export implements the OTLP service.
func (c *Collector) Export(_ context.Context, r *collectorpb.ExportTraceServiceRequest) (*collectorpb.ExportTraceServiceResponse, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, resource := range r.ResourceSpans {
		service := ""
		for _, a := range resource.Resource.Attributes {
			if a.Key == "service.name" {
				service = a.Value.GetStringValue()
			}
		}
		for _, scope := range resource.ScopeSpans {
			for _, span := range scope.Spans {
				c.spans[span.Name], c.services[span.Name] = span, service
			}
		}
	}
	return &collectorpb.ExportTraceServiceResponse{}, nil
}

// Spans are the last received spans by name.
func (c *Collector) Spans() map[string]*tracepb.Span {
	c.mu.Lock()
	defer c.mu.Unlock()
	return maps.Clone(c.spans)
}

// Service is the name of the service that has sent a span.
func (c *Collector) Service(span string) string {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.services[span]
}
