package core

import (
	"net/url"
	"testing"

	corev1 "k8s.io/api/core/v1"
	apiequality "k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/apimachinery/pkg/runtime"

	"skiff/internal/kind"
)

// TestConnectOptions: every subresource that is a connection says what admission sees; reading logs is none.
func TestConnectOptions(t *testing.T) {
	query := url.Values{"stdin": {"true"}, "stdout": {""}, "stderr": {"false"}, "tty": {"0"}, "container": {"c"}, "command": {"ls", "-l"}, "ports": {"80", "81"}}
	for _, test := range []struct {
		kind *kind.Kind
		sub  string
		want runtime.Object
	}{
		{Pod, "exec", &corev1.PodExecOptions{Stdin: true, Stdout: true, Container: "c", Command: []string{"ls", "-l"}}},
		{Pod, "attach", &corev1.PodAttachOptions{Stdin: true, Stdout: true, Container: "c"}},
		{Pod, "portforward", &corev1.PodPortForwardOptions{Ports: []int32{80, 81}}},
		{Pod, "proxy", &corev1.PodProxyOptions{Path: "/a"}},
		{Pod, "log", nil},
		{Service, "proxy", &corev1.ServiceProxyOptions{Path: "/a"}},
		{Node, "proxy", &corev1.NodeProxyOptions{Path: "/a"}},
	} {
		for i := range test.kind.Subresources {
			sub := &test.kind.Subresources[i]
			if sub.Name != test.sub {
				continue
			}
			if (sub.ConnectOptions == nil) != (test.want == nil) {
				t.Errorf("%s %s has options: %t", test.kind.Plural, test.sub, sub.ConnectOptions != nil)
				continue
			}
			if test.want == nil {
				continue
			}
			if got, err := sub.ConnectOptions(query, "/a"); err != nil || !apiequality.Semantic.DeepEqual(got, test.want) {
				t.Errorf("%s %s: %v %v", test.kind.Plural, test.sub, got, err)
			}
		}
	}
	if _, err := portForwardOptions(url.Values{"ports": {"http"}}, ""); err == nil {
		t.Error("a port that is no number")
	}
}
