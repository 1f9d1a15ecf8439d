// Package tracing exports spans with OpenTelemetry, as upstream's components do: over OTLP and gRPC to a collector, which a
// TracingConfiguration names. Spans wait in a queue of bounded length; when the collector does not keep up, they are dropped.
package tracing

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/url"
	"os"
	"strings"
	"time"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/exporters/otlp/otlptrace/otlptracegrpc"
	"go.opentelemetry.io/otel/propagation"
	"go.opentelemetry.io/otel/sdk/resource"
	sdktrace "go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/trace"
	"go.opentelemetry.io/otel/trace/noop"
	"google.golang.org/grpc"
	"google.golang.org/grpc/metadata"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/validation/field"
	tracingapi "k8s.io/component-base/tracing/api/v1"

	"skiff/internal/configfile"
)

// scope is the name of the instrumentation, with upstream's value.
const scope = "k8s.io/component-base/tracing"

// shutdownTimeout is how long the last spans may take at the end of the process.
const shutdownTimeout = 5 * time.Second

// maxSamplingRate is all of a million.
const maxSamplingRate = 1_000_000

// configuration is the content of a file, in all versions of apiserver.config.k8s.io that have it.
type configuration struct {
	metav1.TypeMeta                 `json:",inline"`
	tracingapi.TracingConfiguration `json:",inline"`
}

// ReadConfiguration reads a TracingConfiguration file.
func ReadConfiguration(path string) (*tracingapi.TracingConfiguration, error) {
	data, err := os.ReadFile(path)
	if err != nil {
		return nil, err
	}
	var file configuration
	if err := configfile.Decode(data, &file); err != nil {
		return nil, fmt.Errorf("%s: %w", path, err)
	}
	group, version, _ := strings.Cut(file.APIVersion, "/")
	if group != "apiserver.config.k8s.io" || version != "v1" && version != "v1beta1" && version != "v1alpha1" || file.Kind != "TracingConfiguration" {
		return nil, fmt.Errorf("%s: %q of %q is not a TracingConfiguration of apiserver.config.k8s.io/v1", path, file.Kind, file.APIVersion)
	}
	if errs := Validate(&file.TracingConfiguration, nil); len(errs) > 0 {
		return nil, fmt.Errorf("%s: %w", path, errs.ToAggregate())
	}
	return &file.TracingConfiguration, nil
}

// Validate validates a configuration.
func Validate(c *tracingapi.TracingConfiguration, fldPath *field.Path) (errs field.ErrorList) {
	if rate := c.SamplingRatePerMillion; rate != nil && (*rate < 0 || *rate > maxSamplingRate) {
		errs = append(errs, field.Invalid(fldPath.Child("samplingRatePerMillion"), *rate, "must be between 0 and 1000000"))
	}
	if c.Endpoint != nil {
		if err := validateEndpoint(*c.Endpoint); err != nil {
			errs = append(errs, field.Invalid(fldPath.Child("endpoint"), *c.Endpoint, err.Error()))
		}
	}
	return errs
}

func validateEndpoint(endpoint string) error {
	if !strings.Contains(endpoint, "//") {
		endpoint = "dns://" + endpoint
	}
	parsed, err := url.Parse(endpoint)
	if err != nil {
		return err
	}
	switch parsed.Scheme {
	case "dns", "unix", "unix-abstract":
		return nil
	}
	return errors.New("unsupported scheme: options are none, dns, unix, or unix-abstract")
}

// Options are the dependencies of a Provider.
type Options struct {
	// Service and InstanceID identify this program in traces.
	Service, InstanceID string
	// Dial connects to the collector; nil: the host's network is used.
	Dial func(ctx context.Context, network, address string) (net.Conn, error)
}

// Provider makes and exports spans. The spans of a nil *Provider are not recorded.
type Provider struct {
	provider *sdktrace.TracerProvider
	tracer   trace.Tracer
}

// New makes a provider. The connection to the collector is made in the background.
func New(ctx context.Context, c *tracingapi.TracingConfiguration, o Options) (*Provider, error) {
	options := []otlptracegrpc.Option{otlptracegrpc.WithInsecure()}
	if c.Endpoint != nil {
		options = append(options, otlptracegrpc.WithEndpoint(*c.Endpoint))
	}
	if o.Dial != nil {
		options = append(options, otlptracegrpc.WithDialOption(grpc.WithContextDialer(func(ctx context.Context, address string) (net.Conn, error) {
			return o.Dial(ctx, "tcp", address)
		})))
	}
	exporter, err := otlptracegrpc.New(ctx, options...)
	if err != nil {
		return nil, fmt.Errorf("make the exporter of traces: %w", err)
	}
	// A span with a parent is sampled as its parent is, others by the rate.
	sampler := sdktrace.NeverSample()
	if rate := c.SamplingRatePerMillion; rate != nil && *rate > 0 {
		sampler = sdktrace.TraceIDRatioBased(float64(*rate) / maxSamplingRate)
	}
	provider := sdktrace.NewTracerProvider(
		sdktrace.WithSampler(sdktrace.ParentBased(sampler)), sdktrace.WithBatcher(exporter),
		sdktrace.WithResource(resource.NewSchemaless(attribute.String("service.name", o.Service), attribute.String("service.instance.id", o.InstanceID))),
	)
	return &Provider{provider: provider, tracer: provider.Tracer(scope)}, nil
}

// Run waits until ctx is done and exports the last spans. Constructing a provider has started its exporter.
func (p *Provider) Run(ctx context.Context) error {
	<-ctx.Done()
	if p == nil {
		return nil
	}
	grace, cancel := context.WithTimeout(context.WithoutCancel(ctx), shutdownTimeout)
	defer cancel()
	// Spans that cannot be exported any more are lost; that is no failure of the component.
	_ = p.provider.Shutdown(grace)
	return nil
}

var propagators = propagation.NewCompositeTextMapPropagator(propagation.TraceContext{}, propagation.Baggage{})

// StartRequest begins the span of a request to a server. The span that the client names in its headers is the parent if the client is
// trusted; otherwise the new span only has a link to it, so that clients do not decide what is sampled.
func (p *Provider) StartRequest(r *http.Request, name string, began time.Time, trusted bool, attributes ...attribute.KeyValue) (context.Context, trace.Span) {
	ctx := propagators.Extract(r.Context(), propagation.HeaderCarrier(r.Header))
	options := []trace.SpanStartOption{trace.WithSpanKind(trace.SpanKindServer), trace.WithTimestamp(began), trace.WithAttributes(attributes...)}
	if remote := trace.SpanContextFromContext(ctx); !trusted && remote.IsValid() {
		options = append(options, trace.WithNewRoot(), trace.WithLinks(trace.Link{SpanContext: remote}))
	}
	return p.tracer.Start(ctx, name, options...)
}

// StartInternal begins the span of work that no request has caused.
func (p *Provider) StartInternal(ctx context.Context, name string, attributes ...attribute.KeyValue) (context.Context, trace.Span) {
	if p == nil {
		return ctx, noop.Span{}
	}
	return p.tracer.Start(ctx, name, trace.WithAttributes(attributes...))
}

// Start begins a span below that of ctx. Without a recorded span in ctx it does nothing.
func Start(ctx context.Context, name string, attributes ...attribute.KeyValue) (context.Context, trace.Span) {
	parent := trace.SpanFromContext(ctx)
	if !parent.IsRecording() {
		return ctx, noop.Span{}
	}
	return parent.TracerProvider().Tracer(scope).Start(ctx, name, trace.WithAttributes(attributes...))
}

// Inject tells the server of an HTTP request about the span of ctx, if there is one.
func Inject(ctx context.Context, header http.Header) {
	propagators.Inject(ctx, propagation.HeaderCarrier(header))
}

// StartCall begins the span of a gRPC call below that of ctx, and tells the server about it.
func StartCall(ctx context.Context, method string) (context.Context, trace.Span) {
	parent := trace.SpanFromContext(ctx)
	if !parent.IsRecording() {
		return ctx, noop.Span{}
	}
	ctx, span := parent.TracerProvider().Tracer(scope).Start(ctx, method, trace.WithSpanKind(trace.SpanKindClient), trace.WithAttributes(attribute.String("rpc.system", "grpc")))
	carrier := propagation.MapCarrier{}
	propagators.Inject(ctx, carrier)
	for key, value := range carrier {
		ctx = metadata.AppendToOutgoingContext(ctx, key, value)
	}
	return ctx, span
}

// Handler records the requests to a handler that serves authenticated clients. A nil *Provider returns the handler itself.
func (p *Provider) Handler(next http.Handler, name string) http.Handler {
	if p == nil {
		return next
	}
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		ctx, span := p.StartRequest(r, name, time.Now(), true,
			attribute.String("http.request.method", r.Method), attribute.String("url.path", r.URL.Path), attribute.String("http.target", r.URL.RequestURI()))
		defer span.End()
		next.ServeHTTP(w, r.WithContext(ctx))
	})
}
