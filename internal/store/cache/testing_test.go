package cache

import (
	"bytes"
	"context"
	"errors"
	"io"
	"log/slog"
	"strconv"
	"sync/atomic"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"

	"skiff/internal/kind"
	"skiff/internal/store"
)

// podCodec stores pods as the server does.
type podCodec struct{ decoded atomic.Int64 }

func (c *podCodec) Decode(value []byte, revision store.Revision) (kind.Object, error) {
	c.decoded.Add(1)
	message, ok := bytes.CutPrefix(value, magic)
	if !ok {
		return nil, errors.New("not an envelope")
	}
	var unknown runtime.Unknown
	if err := unknown.Unmarshal(message); err != nil {
		return nil, err
	}
	pod := new(corev1.Pod)
	if err := pod.Unmarshal(unknown.Raw); err != nil {
		return nil, err
	}
	pod.ResourceVersion = strconv.FormatInt(revision, 10)
	return pod, nil
}

func (c *podCodec) Encode(obj kind.Object) ([]byte, error) {
	pod := obj.(*corev1.Pod)
	version := pod.ResourceVersion
	pod.ResourceVersion = ""
	defer func() { pod.ResourceVersion = version }()
	raw, err := pod.Marshal()
	if err != nil {
		return nil, err
	}
	unknown := runtime.Unknown{TypeMeta: runtime.TypeMeta{APIVersion: "v1", Kind: "Pod"}, Raw: raw}
	message, err := unknown.Marshal()
	if err != nil {
		return nil, err
	}
	return append(bytes.Clone(magic), message...), nil
}

const podPrefix = "/registry/pods/"

func podResource() Resource {
	return Resource{
		Name: "pods", Prefix: podPrefix, Codec: &podCodec{},
		Fields: func(_ context.Context, objs []kind.Object) ([]map[string]string, error) {
			var values []map[string]string
			for _, obj := range objs {
				values = append(values, map[string]string{"spec.nodeName": obj.(*corev1.Pod).Spec.NodeName})
			}
			return values, nil
		},
		Index: nodeNameOf,
	}
}

// nodeNameOf reads a pod's spec.nodeName: field 10 of the message in field 2.
func nodeNameOf(stored []byte) (string, bool) { return StoredField(stored, []uint64{2, 10}) }

func podKey(namespace, name string) string { return podPrefix + namespace + "/" + name }

func newPod(namespace, name string) *corev1.Pod {
	return &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name, UID: types.UID(namespace + "." + name), Labels: map[string]string{"app": name}},
		Spec:       corev1.PodSpec{NodeName: "node-1"},
	}
}

// must returns the value of a call that does not fail.
func must[V any](value V, err error) V {
	if err != nil {
		panic(err)
	}
	return value
}

func discardLog() *slog.Logger { return slog.New(slog.NewTextHandler(io.Discard, nil)) }

// start runs a cache of the store until the test ends.
func start(t testing.TB, s store.Store, resources ...Resource) (*Cache, []*Table) {
	t.Helper()
	c := New(s, discardLog())
	var tables []*Table
	for _, r := range resources {
		tables = append(tables, c.Add(r))
	}
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- c.Run(ctx) }()
	t.Cleanup(func() {
		cancel()
		if err := <-ended; err != nil {
			t.Errorf("Run: %v", err)
		}
	})
	<-c.Ready()
	return c, tables
}
