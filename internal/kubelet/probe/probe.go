// Package probe runs the liveness, readiness and startup probes of containers: exec, HTTP, TCP and gRPC.
//
// Once runs a probe a single time. Probes runs probes periodically while a container runs, and reports a change when the failure or
// success threshold is reached. HTTP lifecycle hooks use the same requests.
package probe

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/status"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/intstr"

	"skiff/internal/kubelet/cri"
	"skiff/internal/version"
)

const (
	// maxOutput bounds the output of a probe in bytes.
	maxOutput = 10 << 10
	// maxRedirects is how many redirects on the same host are followed.
	maxRedirects = 10
)

// Outcome is the result of a single probe.
type Outcome int

// The outcomes. A warning counts as success.
const (
	Failure Outcome = iota
	Success
	Warning
)

// Target is the container to probe.
type Target struct {
	Container *corev1.Container
	ID        string
	PodIP     string
}

// Exec runs a command in a container and returns its output.
type Exec func(ctx context.Context, id string, command []string, timeout time.Duration) ([]byte, error)

// Once probes a container once. An error means that the probe could not be run and has no outcome.
func Once(ctx context.Context, p *corev1.Probe, t Target, exec Exec) (Outcome, string, error) {
	timeout := time.Duration(max(p.TimeoutSeconds, 1)) * time.Second
	switch {
	case p.Exec != nil:
		return runCommand(ctx, p.Exec.Command, t, timeout, exec)
	case p.HTTPGet != nil:
		request, err := NewRequest(ctx, p.HTTPGet, t.Container, t.PodIP, "probe")
		if err != nil {
			return Failure, "", err
		}
		return get(request, timeout)
	case p.TCPSocket != nil:
		port, err := resolvePort(p.TCPSocket.Port, t.Container)
		if err != nil {
			return Failure, "", err
		}
		return connect(ctx, hostOr(p.TCPSocket.Host, t.PodIP), port, timeout)
	case p.GRPC != nil:
		service := ""
		if p.GRPC.Service != nil {
			service = *p.GRPC.Service
		}
		return checkHealth(ctx, t.PodIP, int(p.GRPC.Port), service, timeout)
	}
	return Failure, "", fmt.Errorf("missing probe handler for %s", t.Container.Name)
}

func hostOr(host, ip string) string {
	if host != "" {
		return host
	}
	return ip
}

func runCommand(ctx context.Context, command []string, t Target, timeout time.Duration, exec Exec) (Outcome, string, error) {
	output, err := exec(ctx, t.ID, command, timeout)
	output = output[:min(len(output), maxOutput)]
	var exit *cri.ExitError
	switch {
	case err == nil:
		return Success, string(output), nil
	case errors.As(err, &exit):
		return Failure, string(output), nil
	case errors.Is(err, cri.ErrTimedOut):
		return Failure, err.Error(), nil
	}
	return Failure, "", err
}

// dialer makes connections whose sockets are released when they are closed.
func dialer(timeout time.Duration) *net.Dialer {
	return &net.Dialer{Timeout: timeout, Control: setLinger}
}

func connect(ctx context.Context, host string, port int, timeout time.Duration) (Outcome, string, error) {
	connection, err := dialer(timeout).DialContext(ctx, "tcp", net.JoinHostPort(host, strconv.Itoa(port)))
	if err != nil {
		return Failure, err.Error(), nil
	}
	_ = connection.Close()
	return Success, "", nil
}

// resolvePort returns the number of a port that may be given by name.
func resolvePort(port intstr.IntOrString, c *corev1.Container) (int, error) {
	number := port.IntValue()
	if port.Type == intstr.String {
		number = 0
		for _, p := range c.Ports {
			if p.Name == port.StrVal {
				number = int(p.ContainerPort)
			}
		}
		if number == 0 {
			return 0, fmt.Errorf("port %q not found", port.StrVal)
		}
	}
	if number <= 0 || number > 65535 {
		return 0, fmt.Errorf("invalid port number: %v", number)
	}
	return number, nil
}

// NewRequest is the request of a probe or hook. purpose is part of its User-Agent.
func NewRequest(ctx context.Context, get *corev1.HTTPGetAction, c *corev1.Container, podIP, purpose string) (*http.Request, error) {
	port, err := resolvePort(get.Port, c)
	if err != nil {
		return nil, err
	}
	address, err := url.Parse(get.Path)
	if err != nil {
		// Validation has accepted the path, so it is sent unparsed.
		address = &url.URL{Path: get.Path}
	}
	address.Scheme = strings.ToLower(string(get.Scheme))
	if address.Scheme == "" {
		address.Scheme = "http"
	}
	address.Host = net.JoinHostPort(hostOr(get.Host, podIP), strconv.Itoa(port))
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, address.String(), nil)
	if err != nil {
		return nil, err
	}
	for _, h := range get.HTTPHeaders {
		request.Header.Add(h.Name, h.Value)
	}
	if _, ok := request.Header["User-Agent"]; !ok {
		v := version.Info()
		request.Header.Set("User-Agent", fmt.Sprintf("kube-%s/%s.%s", purpose, v.Major, v.Minor))
	}
	if _, ok := request.Header["Accept"]; !ok {
		request.Header.Set("Accept", "*/*")
	} else if request.Header.Get("Accept") == "" {
		request.Header.Del("Accept")
	}
	request.Host = request.Header.Get("Host")
	return request, nil
}

// transport uses no proxy, keeps no connections and does not verify certificates: the request goes to the container's address, whatever
// its name.
var transport = &http.Transport{
	TLSClientConfig: &tls.Config{InsecureSkipVerify: true}, DisableKeepAlives: true, DisableCompression: true,
	DialContext: dialer(0).DialContext, ForceAttemptHTTP2: true,
}

// httpClient is the client of probes and hooks. Redirects to other hosts are not followed.
func httpClient(timeout time.Duration) *http.Client {
	return &http.Client{Timeout: timeout, Transport: transport, CheckRedirect: func(next *http.Request, before []*http.Request) error {
		if next.URL.Hostname() != before[0].URL.Hostname() {
			return http.ErrUseLastResponse
		}
		if len(before) >= maxRedirects {
			return fmt.Errorf("stopped after %d redirects", maxRedirects)
		}
		return nil
	}}
}

func get(request *http.Request, timeout time.Duration) (Outcome, string, error) {
	response, err := httpClient(timeout).Do(request)
	if err != nil {
		return Failure, err.Error(), nil
	}
	defer response.Body.Close()
	body, err := io.ReadAll(io.LimitReader(response.Body, maxOutput))
	switch {
	case err != nil:
		return Failure, "", err
	case response.StatusCode >= http.StatusOK && response.StatusCode < http.StatusMultipleChoices:
		return Success, string(body), nil
	case response.StatusCode >= http.StatusMultipleChoices && response.StatusCode < http.StatusBadRequest:
		return Warning, fmt.Sprintf("Probe terminated redirects, Response body: %s", body), nil
	}
	// The body is not in the message, because readers of events may not be allowed to read it.
	return Failure, fmt.Sprintf("HTTP probe failed with statuscode: %d", response.StatusCode), nil
}

// Hook sends the request of a lifecycle hook; any response is a success. If the server responds to HTTPS with HTTP, the request is sent
// again without TLS, and fellBack is set.
func Hook(ctx context.Context, action *corev1.HTTPGetAction, c *corev1.Container, podIP string) (fellBack bool, err error) {
	request, err := NewRequest(ctx, action, c, podIP, "lifecycle")
	if err != nil {
		return false, err
	}
	err = discard(httpClient(0).Do(request))
	if err == nil || !strings.Contains(err.Error(), "server gave HTTP response to HTTPS client") {
		return false, err
	}
	plain := request.Clone(ctx)
	plain.URL.Scheme = "http"
	plain.Header.Del("Authorization")
	if discard(httpClient(0).Do(plain)) != nil {
		return false, err
	}
	return true, nil
}

func discard(response *http.Response, err error) error {
	if err != nil {
		return err
	}
	_, _ = io.Copy(io.Discard, io.LimitReader(response.Body, maxOutput))
	return response.Body.Close()
}

func checkHealth(ctx context.Context, host string, port int, service string, timeout time.Duration) (Outcome, string, error) {
	address := net.JoinHostPort(host, strconv.Itoa(port))
	ctx, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	v := version.Info()
	connection, err := grpc.NewClient("passthrough:///"+address,
		grpc.WithUserAgent(fmt.Sprintf("kube-probe/%s.%s", v.Major, v.Minor)),
		grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithContextDialer(func(ctx context.Context, address string) (net.Conn, error) {
			return dialer(0).DialContext(ctx, "tcp", address)
		}))
	if err != nil {
		return Failure, fmt.Sprintf("error: failed to connect service at %q: %+v", address, err), nil
	}
	defer connection.Close()
	connection.Connect()
	for state := connection.GetState(); state.String() != "READY"; state = connection.GetState() {
		if !connection.WaitForStateChange(ctx, state) {
			return Failure, fmt.Sprintf("timeout: failed to connect service %q within %v: %+v", address, timeout, context.Cause(ctx)), nil
		}
	}
	response, err := grpc_health_v1.NewHealthClient(connection).Check(ctx, &grpc_health_v1.HealthCheckRequest{Service: service})
	switch s, _ := status.FromError(err); {
	case err == nil && response.GetStatus() == grpc_health_v1.HealthCheckResponse_SERVING:
		return Success, "service healthy", nil
	case err == nil:
		return Failure, fmt.Sprintf("service unhealthy (responded with %q)", response.GetStatus()), nil
	case s.Code() == codes.Unimplemented:
		return Failure, fmt.Sprintf("error: this server does not implement the grpc health protocol (grpc.health.v1.Health): %s", s.Message()), nil
	case s.Code() == codes.DeadlineExceeded:
		return Failure, fmt.Sprintf("timeout: health rpc did not complete within %v", timeout), nil
	}
	return Failure, fmt.Sprintf("error: health rpc probe failed: %+v", err), nil
}
