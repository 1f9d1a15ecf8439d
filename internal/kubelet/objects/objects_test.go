package objects

import (
	"context"
	"log/slog"
	"reflect"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	certificatesv1 "k8s.io/api/certificates/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"skiff/internal/client"
	"skiff/test/inprocess"
)

func pointer[T any](v T) *T { return &v }

func ref(name string) corev1.LocalObjectReference { return corev1.LocalObjectReference{Name: name} }

// mapPod is a pod with a volume of each config map.
func mapPod(uid string, configMaps ...string) *corev1.Pod {
	pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{UID: types.UID(uid), Namespace: "default"}}
	for _, name := range configMaps {
		pod.Spec.Volumes = append(pod.Spec.Volumes, corev1.Volume{VolumeSource: corev1.VolumeSource{ConfigMap: &corev1.ConfigMapVolumeSource{LocalObjectReference: ref(name)}}})
	}
	return pod
}

func TestReferences(t *testing.T) {
	env := func(references ...string) corev1.Container {
		var c corev1.Container
		for _, name := range references {
			c.Env = append(c.Env, corev1.EnvVar{ValueFrom: &corev1.EnvVarSource{ConfigMapKeyRef: &corev1.ConfigMapKeySelector{LocalObjectReference: ref(name)}}},
				corev1.EnvVar{ValueFrom: &corev1.EnvVarSource{SecretKeyRef: &corev1.SecretKeySelector{LocalObjectReference: ref("s-" + name)}}})
			c.EnvFrom = append(c.EnvFrom, corev1.EnvFromSource{ConfigMapRef: &corev1.ConfigMapEnvSource{LocalObjectReference: ref("all-" + name)}},
				corev1.EnvFromSource{SecretRef: &corev1.SecretEnvSource{LocalObjectReference: ref("s-all-" + name)}})
		}
		return c
	}
	ephemeral := env("ephemeral")
	pod := &corev1.Pod{Spec: corev1.PodSpec{
		ImagePullSecrets: []corev1.LocalObjectReference{ref("pull"), ref("")},
		InitContainers:   []corev1.Container{env("init")}, Containers: []corev1.Container{env("main"), env("main")},
		EphemeralContainers: []corev1.EphemeralContainer{{EphemeralContainerCommon: corev1.EphemeralContainerCommon(ephemeral)}},
		Volumes: []corev1.Volume{
			{VolumeSource: corev1.VolumeSource{ConfigMap: &corev1.ConfigMapVolumeSource{LocalObjectReference: ref("volume")}}},
			{VolumeSource: corev1.VolumeSource{Secret: &corev1.SecretVolumeSource{SecretName: "s-volume"}}},
			{VolumeSource: corev1.VolumeSource{CSI: &corev1.CSIVolumeSource{NodePublishSecretRef: pointer(ref("s-csi"))}}},
			{VolumeSource: corev1.VolumeSource{Projected: &corev1.ProjectedVolumeSource{Sources: []corev1.VolumeProjection{
				{ConfigMap: &corev1.ConfigMapProjection{LocalObjectReference: ref("projected")}}, {Secret: &corev1.SecretProjection{LocalObjectReference: ref("s-projected")}},
				{ClusterTrustBundle: &corev1.ClusterTrustBundleProjection{}},
			}}}},
		},
	}}
	got := referencesOf(pod)
	keys := func(set map[string]bool) []string {
		var all []string
		for key := range set {
			all = append(all, key)
		}
		slices.Sort(all)
		return all
	}
	if want := []string{"all-ephemeral", "all-init", "all-main", "ephemeral", "init", "main", "projected", "volume"}; !reflect.DeepEqual(keys(got.configMaps), want) {
		t.Errorf("config maps %v", keys(got.configMaps))
	}
	if want := []string{"pull", "s-all-ephemeral", "s-all-init", "s-all-main", "s-csi", "s-ephemeral", "s-init", "s-main", "s-projected", "s-volume"}; !reflect.DeepEqual(keys(got.secrets), want) {
		t.Errorf("secrets %v", keys(got.secrets))
	}
	if !got.bundles {
		t.Error("no bundles")
	}
}

// start runs a cache on an empty server. notified has the pods that were notified of changes.
func start(t *testing.T) (*Cache, *client.Client, chan types.UID) {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	c := inprocess.Start(t, ctx)
	notified := make(chan types.UID, 100)
	o := New(c, func(uid types.UID) { notified <- uid }, slog.New(slog.DiscardHandler))
	done := make(chan struct{})
	go func() { defer close(done); _ = o.Run(ctx) }()
	t.Cleanup(func() { cancel(); <-done })
	return o, c, notified
}

func putMap(t *testing.T, c *client.Client, name, value string, immutable bool) {
	t.Helper()
	r := client.For[*corev1.ConfigMap](c)
	object := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: name, Namespace: "default"}, Data: map[string]string{"key": value}, Immutable: &immutable}
	_, err := r.Create(t.Context(), object, client.WriteOptions{})
	if apierrors.IsAlreadyExists(err) {
		_, err = r.Update(t.Context(), object, client.WriteOptions{})
	}
	if err != nil {
		t.Fatal(err)
	}
}

func drain(notified chan types.UID) []string {
	time.Sleep(time.Second)
	synctest.Wait()
	var all []string
	for len(notified) > 0 {
		all = append(all, string(<-notified))
	}
	slices.Sort(all)
	return slices.Compact(all)
}

func TestWatch(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		o, c, notified := start(t)
		if _, err := o.ConfigMap("default", "a"); err == nil || err.Error() != `object "default"/"a" not registered` {
			t.Error(err)
		}
		o.Register(mapPod("1", "a", "b"))
		o.Register(mapPod("2", "a"))
		if _, err := o.ConfigMap("default", "a"); !apierrors.IsNotFound(err) || err.Error() != `configmap "a" not found` {
			t.Error(err)
		}
		value := func(name string) string {
			t.Helper()
			m, err := o.ConfigMap("default", name)
			if err != nil {
				return err.Error()
			}
			return m.Data["key"]
		}
		putMap(t, c, "a", "one", false)
		if got := value("a"); got != "one" {
			t.Errorf("created: %s", got)
		}
		if got := drain(notified); !slices.Equal(got, []string{"1", "2"}) {
			t.Errorf("created: notified %v", got)
		}
		putMap(t, c, "a", "two", false)
		if got := drain(notified); !slices.Equal(got, []string{"1", "2"}) || value("a") != "two" {
			t.Errorf("changed: notified %v, %s", got, value("a"))
		}
		o.Register(mapPod("1", "b")) // references it no longer
		putMap(t, c, "a", "three", false)
		if got := drain(notified); !slices.Equal(got, []string{"2"}) {
			t.Errorf("after one was unregistered: notified %v", got)
		}
		if err := client.For[*corev1.ConfigMap](c).Delete(t.Context(), "default", "a", metav1.DeleteOptions{}); err != nil {
			t.Fatal(err)
		}
		if got := drain(notified); !slices.Equal(got, []string{"2"}) || value("a") != `configmap "a" not found` {
			t.Errorf("deleted: notified %v, %s", got, value("a"))
		}
		o.Unregister("2")
		putMap(t, c, "a", "four", false)
		if got := drain(notified); len(got) != 0 || !strings.Contains(value("a"), "not registered") {
			t.Errorf("unregistered: notified %v, %s", got, value("a"))
		}
		if len(o.configMaps.entries) != 1 || len(o.configMaps.references) != 1 {
			t.Errorf("%d objects, %d pods are kept", len(o.configMaps.entries), len(o.configMaps.references))
		}
	})
}

// TestImmutable reads an immutable object once and does not watch it further.
func TestImmutable(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		o, c, notified := start(t)
		putMap(t, c, "a", "one", true)
		o.Register(mapPod("1", "a"))
		if m, err := o.ConfigMap("default", "a"); err != nil || m.Data["key"] != "one" {
			t.Fatal(err)
		}
		if err := client.For[*corev1.ConfigMap](c).Delete(t.Context(), "default", "a", metav1.DeleteOptions{}); err != nil {
			t.Fatal(err)
		}
		if got := drain(notified); len(got) != 0 {
			t.Errorf("notified %v", got)
		}
		if m, err := o.ConfigMap("default", "a"); err != nil || m.Data["key"] != "one" {
			t.Error("what was read is gone", err)
		}
	})
}

// TestRegisteredBeforeRun: objects registered before Run are watched once it starts.
func TestRegisteredBeforeRun(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithCancel(t.Context())
		c := inprocess.Start(t, ctx)
		putMap(t, c, "a", "one", false)
		o := New(c, func(types.UID) {}, slog.New(slog.DiscardHandler))
		o.Register(mapPod("1", "a"))
		if _, err := o.ConfigMap("default", "a"); err == nil || err.Error() != "failed to sync configmap cache: timed out waiting for the condition" {
			t.Error(err)
		}
		done := make(chan struct{})
		go func() { defer close(done); _ = o.Run(ctx) }()
		if m, err := o.ConfigMap("default", "a"); err != nil || m.Data["key"] != "one" {
			t.Error(err)
		}
		cancel()
		<-done
		o.Register(mapPod("2", "b")) // starts nothing any more
	})
}

func TestBundles(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		o, c, notified := start(t)
		pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{UID: "1"}, Spec: corev1.PodSpec{Volumes: []corev1.Volume{{VolumeSource: corev1.VolumeSource{
			Projected: &corev1.ProjectedVolumeSource{Sources: []corev1.VolumeProjection{{ClusterTrustBundle: &corev1.ClusterTrustBundleProjection{}}}}}}}}}
		o.Register(pod)
		if all, err := o.TrustBundles(); err != nil || len(all) != 0 {
			t.Fatal(all, err)
		}
		bundle := &certificatesv1.ClusterTrustBundle{ObjectMeta: metav1.ObjectMeta{Name: "b"}, Spec: certificatesv1.ClusterTrustBundleSpec{TrustBundle: anchor}}
		if _, err := client.For[*certificatesv1.ClusterTrustBundle](c).Create(t.Context(), bundle, client.WriteOptions{}); err != nil {
			t.Fatal(err)
		}
		if got := drain(notified); !slices.Equal(got, []string{"1"}) {
			t.Errorf("notified %v", got)
		}
		if all, err := o.TrustBundles(); err != nil || len(all) != 1 || all[0].Name != "b" {
			t.Error(all, err)
		}
		o.Unregister("1")
		if err := client.For[*certificatesv1.ClusterTrustBundle](c).Delete(t.Context(), "", "b", metav1.DeleteOptions{}); err != nil {
			t.Fatal(err)
		}
		if got := drain(notified); len(got) != 0 {
			t.Errorf("notified %v after it was unregistered", got)
		}
		if all, err := o.TrustBundles(); err != nil || len(all) != 0 {
			t.Error(all, err)
		}
	})
}
