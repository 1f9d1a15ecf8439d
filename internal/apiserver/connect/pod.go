package connect

import (
	"context"
	"fmt"
	"net"
	"net/http"
	"net/netip"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/gorilla/websocket"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/validation/field"

	"skiff/internal/apiserver"
	"skiff/internal/container"
	"skiff/internal/kind"
)

func (b *backends) pod(ctx context.Context, c *apiserver.Connection) (*corev1.Pod, error) {
	obj, err := b.objects.Get(ctx, pods, c.Namespace, c.Name)
	if err != nil {
		return nil, err
	}
	return obj.(*corev1.Pod), nil
}

// chooseContainer returns the container that the client names, or the only one.
func chooseContainer(pod *corev1.Pod, name string) (string, error) {
	var names []string
	for _, c := range container.All(&pod.Spec) {
		names = append(names, c.Name)
	}
	switch {
	case name != "" && slices.Contains(names, name):
		return name, nil
	case name != "":
		return "", apierrors.NewBadRequest(fmt.Sprintf("container %s is not valid for pod %s", name, pod.Name))
	case len(pod.Spec.Containers) == 1:
		return pod.Spec.Containers[0].Name, nil
	case len(pod.Spec.Containers) == 0:
		return "", apierrors.NewBadRequest(fmt.Sprintf("a container name must be specified for pod %s", pod.Name))
	}
	return "", apierrors.NewBadRequest(fmt.Sprintf("a container name must be specified for pod %s, choose one of: %s", pod.Name, names))
}

func (b *backends) podLog(w http.ResponseWriter, r *http.Request, c *apiserver.Connection) error {
	options, err := logOptions(r.URL.Query())
	if err != nil {
		return err
	}
	if errs := validateLogOptions(options); len(errs) > 0 {
		return kind.NewInvalid(corev1.SchemeGroupVersion.WithKind("PodLogOptions").GroupKind(), c.Name, errs)
	}
	pod, err := b.pod(r.Context(), c)
	if err != nil {
		return err
	}
	name, err := chooseContainer(pod, options.Container)
	if err != nil {
		return err
	}
	if pod.Spec.NodeName == "" {
		w.WriteHeader(http.StatusNoContent) // no container has started
		return nil
	}
	w.Header().Set("Content-Type", "text/plain")
	location, err := b.kubeletOf(r.Context(), pod.Spec.NodeName)
	if err != nil {
		return err
	}
	location.Path = "/containerLogs/" + pod.Namespace + "/" + pod.Name + "/" + name
	location.RawQuery = logQuery(options).Encode()
	var over http.RoundTripper = b.kubelet
	if options.InsecureSkipTLSVerifyBackend {
		over = b.unverified
	}
	over = &statusChecker{RoundTripper: over, resource: c.Resource, name: c.Name}
	if websocket.IsWebSocketUpgrade(r) {
		return sendOverWebSocket(w, r, location, over)
	}
	pass := r.Clone(r.Context())
	pass.Header = http.Header{}
	return send(w, pass, location, over)
}

func logQuery(o *corev1.PodLogOptions) url.Values {
	query := url.Values{}
	for name, set := range map[string]bool{"follow": o.Follow, "previous": o.Previous, "timestamps": o.Timestamps} {
		if set {
			query.Set(name, "true")
		}
	}
	for name, value := range map[string]*int64{"sinceSeconds": o.SinceSeconds, "tailLines": o.TailLines, "limitBytes": o.LimitBytes} {
		if value != nil {
			query.Set(name, strconv.FormatInt(*value, 10))
		}
	}
	if o.SinceTime != nil {
		query.Set("sinceTime", o.SinceTime.Format(time.RFC3339))
	}
	if o.Stream != nil {
		query.Set("stream", *o.Stream)
	}
	return query
}

func validateLogOptions(o *corev1.PodLogOptions) (errs field.ErrorList) {
	if o.TailLines != nil && *o.TailLines < 0 {
		errs = append(errs, field.Invalid(field.NewPath("tailLines"), *o.TailLines, "must be greater than or equal to 0"))
	}
	if o.LimitBytes != nil && *o.LimitBytes < 1 {
		errs = append(errs, field.Invalid(field.NewPath("limitBytes"), *o.LimitBytes, "must be greater than 0"))
	}
	switch {
	case o.SinceSeconds != nil && o.SinceTime != nil:
		errs = append(errs, field.Forbidden(field.NewPath(""), "at most one of `sinceTime` or `sinceSeconds` may be specified"))
	case o.SinceSeconds != nil && *o.SinceSeconds < 1:
		errs = append(errs, field.Invalid(field.NewPath("sinceSeconds"), *o.SinceSeconds, "must be greater than 0"))
	}
	if o.Stream == nil {
		return errs
	}
	streams := []string{corev1.LogStreamAll, corev1.LogStreamStderr, corev1.LogStreamStdout}
	if !slices.Contains(streams, *o.Stream) {
		errs = append(errs, field.NotSupported(field.NewPath("stream"), *o.Stream, streams))
	}
	if *o.Stream != corev1.LogStreamAll && o.TailLines != nil {
		errs = append(errs, field.Forbidden(field.NewPath(""), "`tailLines` and specific `stream` are mutually exclusive for now"))
	}
	return errs
}

func (b *backends) podExec(w http.ResponseWriter, r *http.Request, c *apiserver.Connection) error {
	query := r.URL.Query()
	to := streamQuery(query)
	to["command"] = query["command"]
	return b.stream(w, r, c, session{verb: "exec", container: query.Get("container"), query: to})
}

func (b *backends) podAttach(w http.ResponseWriter, r *http.Request, c *apiserver.Connection) error {
	query := r.URL.Query()
	return b.stream(w, r, c, session{verb: "attach", container: query.Get("container"), query: streamQuery(query)})
}

func (b *backends) podPortForward(w http.ResponseWriter, r *http.Request, c *apiserver.Connection) error {
	pod, err := b.pod(r.Context(), c)
	if err != nil {
		return err
	}
	query := url.Values{}
	ports := r.URL.Query()["ports"]
	for _, port := range ports {
		if n, err := strconv.ParseUint(port, 10, 16); err != nil || n == 0 {
			return apierrors.NewBadRequest(fmt.Sprintf("ports: %q is not a port", port))
		}
	}
	if len(ports) > 0 {
		query.Set("port", strings.Join(ports, ","))
	}
	return b.toKubelet(w, r, pod, "/portForward/"+pod.Namespace+"/"+pod.Name, query)
}

// session is an exec or attach session.
type session struct {
	verb      string // exec or attach, as in the kubelet's paths
	container string // "" lets the pod decide
	query     url.Values
}

// stream forwards a session to the kubelet.
func (b *backends) stream(w http.ResponseWriter, r *http.Request, c *apiserver.Connection, s session) error {
	pod, err := b.pod(r.Context(), c)
	if err != nil {
		return err
	}
	container, err := chooseContainer(pod, s.container)
	if err != nil {
		return err
	}
	return b.toKubelet(w, r, pod, "/"+s.verb+"/"+pod.Namespace+"/"+pod.Name+"/"+container, s.query)
}

func (b *backends) toKubelet(w http.ResponseWriter, r *http.Request, pod *corev1.Pod, path string, query url.Values) error {
	if pod.Spec.NodeName == "" {
		return apierrors.NewBadRequest(fmt.Sprintf("pod %s does not have a host assigned", pod.Name))
	}
	if r.Header.Get("Upgrade") == "" {
		return apierrors.NewBadRequest("Upgrade request required")
	}
	location, err := b.kubeletOf(r.Context(), pod.Spec.NodeName)
	if err != nil {
		return err
	}
	location.Path, location.RawQuery = path, query.Encode()
	return send(w, r, location, b.kubelet)
}

// defaultAddressTypes are IP addresses before names.
var defaultAddressTypes = []corev1.NodeAddressType{
	corev1.NodeInternalIP, corev1.NodeExternalIP, corev1.NodeInternalDNS, corev1.NodeExternalDNS, corev1.NodeHostName,
}

const kubeletPort = 10250

// kubeletOf returns the URL of a node's kubelet.
func (b *backends) kubeletOf(ctx context.Context, name string) (*url.URL, error) {
	obj, err := b.objects.Get(ctx, nodes, metav1.NamespaceNone, name)
	if err != nil {
		return nil, err
	}
	node := obj.(*corev1.Node)
	port := int(node.Status.DaemonEndpoints.KubeletEndpoint.Port)
	if port == 0 {
		port = kubeletPort
	}
	for _, wanted := range b.addressTypes {
		for _, address := range node.Status.Addresses {
			if address.Type == wanted && isOfType(address) {
				return &url.URL{Scheme: "https", Host: net.JoinHostPort(address.Address, strconv.Itoa(port))}, nil
			}
		}
	}
	return nil, apierrors.NewServiceUnavailable(fmt.Sprintf("no preferred addresses found; known addresses: %v", node.Status.Addresses))
}

// isOfType reports whether an address that should be an IP address is one. The kubelet reports its addresses; validation accepts any text.
func isOfType(address corev1.NodeAddress) bool {
	if address.Type != corev1.NodeInternalIP && address.Type != corev1.NodeExternalIP {
		return true
	}
	_, err := netip.ParseAddr(address.Address)
	return err == nil
}
