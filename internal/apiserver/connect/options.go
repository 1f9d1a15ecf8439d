package connect

import (
	"fmt"
	"net/url"
	"strconv"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"skiff/internal/kind"
)

// parameters parses options from a query. err is the first error.
type parameters struct {
	query url.Values
	err   error
}

func (p *parameters) flag(name string) bool { return kind.QueryFlag(p.query, name) }

// number is nil when the parameter is absent or empty.
func (p *parameters) number(name string) *int64 {
	text := p.query.Get(name)
	if text == "" {
		return nil
	}
	n, err := strconv.ParseInt(text, 10, 64)
	if err != nil && p.err == nil {
		p.err = apierrors.NewBadRequest(fmt.Sprintf("%s: %v", name, err))
	}
	return &n
}

func (p *parameters) time(name string) *metav1.Time {
	text := p.query.Get(name)
	if text == "" {
		return nil
	}
	t, err := time.Parse(time.RFC3339, text)
	if err != nil && p.err == nil {
		p.err = apierrors.NewBadRequest(fmt.Sprintf("%s: %v", name, err))
	}
	return &metav1.Time{Time: t}
}

func logOptions(query url.Values) (*corev1.PodLogOptions, error) {
	p := parameters{query: query}
	o := &corev1.PodLogOptions{
		Container: query.Get("container"), Follow: p.flag("follow"), Previous: p.flag("previous"), Timestamps: p.flag("timestamps"),
		SinceSeconds: p.number("sinceSeconds"), SinceTime: p.time("sinceTime"), TailLines: p.number("tailLines"), LimitBytes: p.number("limitBytes"),
		InsecureSkipTLSVerifyBackend: p.flag("insecureSkipTLSVerifyBackend"),
	}
	if stream := query.Get("stream"); stream != "" {
		o.Stream = &stream
	}
	return o, p.err
}

// streamQuery translates the client's streams into the kubelet's parameters.
func streamQuery(query url.Values) url.Values {
	p, to := parameters{query: query}, url.Values{}
	for name, kubelets := range map[string]string{"stdin": "input", "stdout": "output", "stderr": "error", "tty": "tty"} {
		if p.flag(name) {
			to.Set(kubelets, "1")
		}
	}
	return to
}
