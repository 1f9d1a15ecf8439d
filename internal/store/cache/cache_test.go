package cache

import (
	"context"
	"errors"
	"testing"

	corev1 "k8s.io/api/core/v1"

	"skiff/internal/store"
	"skiff/internal/store/memory"
)

func TestWriteAndRead(t *testing.T) {
	ctx := context.Background()
	resource := podResource()
	c, tables := start(t, memory.New(), resource)
	pods := tables[0]
	pod := newPod("default", "a")
	key := podKey("default", "a")

	created, err := pods.Create(ctx, key, pod, 0)
	if err != nil {
		t.Fatal(err)
	}
	if got := pods.Get(key); got != created {
		t.Fatalf("Get returns %v, want the entry Create returned", got)
	}
	if obj, _ := created.Object(); obj != pod || pod.ResourceVersion != "2" {
		t.Errorf("the entry does not hold the writer's object with its resourceVersion, got %v", obj)
	}
	if n := resource.Codec.(*podCodec).decoded.Load(); n != 0 {
		t.Errorf("%d decodes, want none: the writer had the object", n)
	}
	if _, err := pods.Create(ctx, key, newPod("default", "a"), 0); !errors.Is(err, store.ErrExists) {
		t.Errorf("second Create: %v, want ErrExists", err)
	}

	same, err := pods.Update(ctx, key, pod.DeepCopy(), 0, created.Revision())
	if err != nil || same != created {
		t.Errorf("Update without a change: %v, %v; want the entry there was", same, err)
	}
	changed := pod.DeepCopy()
	changed.Spec.NodeName = "node-2"
	updated, err := pods.Update(ctx, key, changed, 0, created.Revision())
	if err != nil {
		t.Fatal(err)
	}
	if must(updated.Fields(t.Context()))["spec.nodeName"] != "node-2" || must(updated.Labels())["app"] != "a" {
		t.Errorf("fields %v, labels %v", must(updated.Fields(t.Context())), must(updated.Labels()))
	}
	var conflict *Conflict
	if _, err := pods.Update(ctx, key, pod.DeepCopy(), 0, created.Revision()); !errors.As(err, &conflict) || conflict.Current != updated {
		t.Errorf("stale Update: %v, want a conflict with the newest entry", err)
	}
	deleted, err := pods.Delete(ctx, key, updated.Revision())
	if err != nil {
		t.Fatal(err)
	}
	obj, err := deleted.Object()
	if err != nil {
		t.Fatal(err)
	}
	if p := obj.(*corev1.Pod); p.Spec.NodeName != "node-2" || p.ResourceVersion != "4" || deleted.Revision() != c.Revision() {
		t.Errorf("deleted entry is at %d with %s, want the last state at the deletion's revision", deleted.Revision(), p.ResourceVersion)
	}
	if _, err := pods.Delete(ctx, key, updated.Revision()); !errors.As(err, &conflict) || conflict.Current != nil {
		t.Errorf("second Delete: %v, want a conflict with nothing", err)
	}
	if _, err := pods.Create(ctx, "/registry/nodes/a", pod.DeepCopy(), 0); err == nil {
		t.Error("a table takes a key of another")
	}
	if pods.Get(key) != nil || pods.Snapshot().Len("") != 0 {
		t.Error("the deleted object is still there")
	}
}
