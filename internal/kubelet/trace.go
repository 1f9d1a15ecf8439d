package kubelet

import (
	"context"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/codes"
	"go.opentelemetry.io/otel/trace"
	"go.opentelemetry.io/otel/trace/noop"
)

// stageSpans are upstream's names of the spans of a pod's stages.
var stageSpans = map[stage]string{syncing: "syncPod", terminating: "syncTerminatingPod", terminated: "syncTerminatedPod"}

// startSpan begins the span of a sync. The calls of the container runtime are below it.
func (w *worker) startSpan(ctx context.Context, at stage) (context.Context, trace.Span) {
	if w.k.Tracing == nil {
		return ctx, noop.Span{}
	}
	w.mu.Lock()
	pod := w.pod
	w.mu.Unlock()
	return w.k.Tracing.StartInternal(ctx, stageSpans[at], attribute.String("k8s.pod.uid", string(pod.UID)),
		attribute.String("k8s.pod", pod.Namespace+"/"+pod.Name), attribute.String("k8s.pod.name", pod.Name), attribute.String("k8s.namespace.name", pod.Namespace))
}

// endSpan ends the span of a sync with its result.
func endSpan(span trace.Span, err error) {
	if err != nil {
		span.RecordError(err)
		span.SetStatus(codes.Error, err.Error())
	}
	span.End()
}
