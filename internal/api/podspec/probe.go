package podspec

import (
	"fmt"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/apimachinery/pkg/util/sets"
	utilvalidation "k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/apimachinery/pkg/util/validation/field"
)

// handler is the union of the actions of probes and lifecycle hooks.
type handler struct {
	exec  *corev1.ExecAction
	http  *corev1.HTTPGetAction
	tcp   *corev1.TCPSocketAction
	grpc  *corev1.GRPCAction
	sleep *corev1.SleepAction
}

func (val *validator) lifecycleAndProbes(c *corev1.Container, path *field.Path) {
	if c.Lifecycle != nil {
		val.lifecycle(c.Lifecycle, path.Child("lifecycle"))
	}
	for _, p := range []struct {
		name  string
		probe *corev1.Probe
	}{{"livenessProbe", c.LivenessProbe}, {"startupProbe", c.StartupProbe}} {
		if p.probe != nil {
			val.probe(p.probe, path.Child(p.name))
			if p.probe.SuccessThreshold != 1 {
				val.invalid(path.Child(p.name, "successThreshold"), p.probe.SuccessThreshold, "must be 1")
			}
		}
	}
	if c.ReadinessProbe != nil {
		path := path.Child("readinessProbe")
		val.probe(c.ReadinessProbe, path)
		if period := c.ReadinessProbe.TerminationGracePeriodSeconds; period != nil {
			val.invalid(path.Child("terminationGracePeriodSeconds"), *period, "must not be set for readinessProbes")
		}
	}
}

func (val *validator) probe(probe *corev1.Probe, path *field.Path) {
	val.handler(handler{exec: probe.Exec, http: probe.HTTPGet, tcp: probe.TCPSocket, grpc: probe.GRPC}, path)
	val.nonNegative(path.Child("initialDelaySeconds"), int64(probe.InitialDelaySeconds))
	val.nonNegative(path.Child("timeoutSeconds"), int64(probe.TimeoutSeconds))
	val.nonNegative(path.Child("periodSeconds"), int64(probe.PeriodSeconds))
	val.nonNegative(path.Child("successThreshold"), int64(probe.SuccessThreshold))
	val.nonNegative(path.Child("failureThreshold"), int64(probe.FailureThreshold))
	if period := probe.TerminationGracePeriodSeconds; period != nil && *period <= 0 {
		val.invalid(path.Child("terminationGracePeriodSeconds"), *period, "must be greater than 0")
	}
}

func (val *validator) lifecycle(lifecycle *corev1.Lifecycle, path *field.Path) {
	if h := lifecycle.PostStart; h != nil {
		val.handler(handler{exec: h.Exec, http: h.HTTPGet, tcp: h.TCPSocket, sleep: h.Sleep}, path.Child("postStart"))
	}
	if h := lifecycle.PreStop; h != nil {
		val.handler(handler{exec: h.Exec, http: h.HTTPGet, tcp: h.TCPSocket, sleep: h.Sleep}, path.Child("preStop"))
	}
	if lifecycle.StopSignal != nil {
		val.stopSignal(*lifecycle.StopSignal, path.Child("stopSignal"))
	}
}

// handler requires exactly one action and validates the first.
func (val *validator) handler(h handler, path *field.Path) {
	count := 0
	action := func(set bool, name string, validate func(path *field.Path)) {
		if !set {
			return
		}
		if count++; count > 1 {
			val.forbidden(path.Child(name), "may not specify more than 1 handler type")
			return
		}
		validate(path.Child(name))
	}
	action(h.exec != nil, "exec", func(path *field.Path) {
		if len(h.exec.Command) == 0 {
			val.required(path.Child("command"), "")
		}
	})
	action(h.http != nil, "httpGet", func(path *field.Path) { val.httpGet(h.http, path) })
	action(h.tcp != nil, "tcpSocket", func(path *field.Path) { val.portNumberOrName(path.Child("port"), h.tcp.Port) })
	action(h.grpc != nil, "grpc", func(path *field.Path) {
		val.portNumberOrName(path.Child("port"), intstr.FromInt32(h.grpc.Port))
		optionalOneOf(val, path.Child("mode"), h.grpc.Mode, corev1.GRPCProbeModePlaintext, corev1.GRPCProbeModeTLS)
	})
	action(h.sleep != nil, "sleep", func(path *field.Path) {
		if grace := val.spec.TerminationGracePeriodSeconds; grace != nil && (h.sleep.Seconds < 0 || h.sleep.Seconds > *grace) {
			val.invalid(path, h.sleep.Seconds, fmt.Sprintf("must be non-negative and less than terminationGracePeriodSeconds (%d)", *grace))
		}
	})
	if count == 0 {
		val.required(path, "must specify a handler type")
	}
}

func (val *validator) httpGet(get *corev1.HTTPGetAction, path *field.Path) {
	val.nonEmpty(path.Child("path"), get.Path)
	val.portNumberOrName(path.Child("port"), get.Port)
	oneOf(val, path.Child("scheme"), get.Scheme, corev1.URISchemeHTTP, corev1.URISchemeHTTPS)
	for _, header := range get.HTTPHeaders {
		val.invalidEach(path.Child("httpHeaders"), header.Name, utilvalidation.IsHTTPHeaderName(header.Name))
	}
	switch {
	case get.Protocol == nil || *get.Protocol == corev1.HTTPProtocolHTTP1:
	case *get.Protocol != corev1.HTTPProtocolHTTP2:
		oneOf(val, path.Child("protocol"), *get.Protocol, corev1.HTTPProtocolHTTP1, corev1.HTTPProtocolHTTP2)
	case get.Scheme != corev1.URISchemeHTTP:
		val.invalid(path.Child("protocol"), *get.Protocol, "is only supported with HTTP (H2C)")
	case get.Host != "":
		val.invalid(path.Child("host"), get.Host, "must be empty when `protocol` is \"HTTP2\"")
	}
}

func (val *validator) portNumberOrName(path *field.Path, port intstr.IntOrString) {
	if port.Type == intstr.Int {
		val.invalidEach(path, port.IntValue(), utilvalidation.IsValidPortNum(port.IntValue()))
	} else {
		val.invalidEach(path, port.StrVal, utilvalidation.IsValidPortName(port.StrVal))
	}
}

// stopSignal requires a signal of the pod's operating system; it is not allowed if the pod spec has no os.
func (val *validator) stopSignal(signal corev1.Signal, path *field.Path) {
	switch os := val.spec.OS; {
	case os == nil:
		val.forbidden(path, "may not be set for containers with empty `spec.os.name`")
	case os.Name == corev1.Windows:
		oneOf(val, path, signal, corev1.SIGKILL, corev1.SIGTERM)
	case os.Name == corev1.Linux && !linuxSignals.Has(signal):
		val.add(field.NotSupported(path, signal, sets.List(linuxSignals)))
	}
}

var linuxSignals = func() sets.Set[corev1.Signal] {
	signals := sets.New(
		corev1.SIGABRT, corev1.SIGALRM, corev1.SIGBUS, corev1.SIGCHLD, corev1.SIGCLD, corev1.SIGCONT, corev1.SIGFPE,
		corev1.SIGHUP, corev1.SIGILL, corev1.SIGINT, corev1.SIGIO, corev1.SIGIOT, corev1.SIGKILL, corev1.SIGPIPE,
		corev1.SIGPOLL, corev1.SIGPROF, corev1.SIGPWR, corev1.SIGQUIT, corev1.SIGSEGV, corev1.SIGSTKFLT, corev1.SIGSTOP,
		corev1.SIGSYS, corev1.SIGTERM, corev1.SIGTRAP, corev1.SIGTSTP, corev1.SIGTTIN, corev1.SIGTTOU, corev1.SIGURG,
		corev1.SIGUSR1, corev1.SIGUSR2, corev1.SIGVTALRM, corev1.SIGWINCH, corev1.SIGXCPU, corev1.SIGXFSZ,
		corev1.SIGRTMIN, corev1.SIGRTMAX)
	for i := 1; i <= 15; i++ {
		signals.Insert(corev1.Signal(fmt.Sprintf("SIGRTMIN+%d", i)))
	}
	for i := 1; i <= 14; i++ {
		signals.Insert(corev1.Signal(fmt.Sprintf("SIGRTMAX-%d", i)))
	}
	return signals
}()
