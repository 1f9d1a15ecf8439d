package kubelet

import (
	"cmp"
	"context"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"hash/fnv"
	"io"
	"maps"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/yaml"

	"skiff/internal/api/core"
	"skiff/internal/api/podspec"
	"skiff/internal/client"
	"skiff/internal/container"
	"skiff/internal/podstate"
)

// The annotations of static pods and mirror pods.
const (
	annotationHash = "kubernetes.io/config.hash"
	annotationSeen = "kubernetes.io/config.seen"
)

const (
	// defaultStaticPeriod is the default period of reading static pods.
	defaultStaticPeriod = 20 * time.Second
	// staticPoll is how often the directory of static pods is checked for changes.
	staticPoll = 2 * time.Second
	// maxManifest bounds the size of a manifest in bytes.
	maxManifest = 10 << 20
)

// watchStatic watches the static pod manifests until ctx is done. If a source cannot be read, its pods are kept.
func (k *Kubelet) watchStatic(ctx context.Context) error {
	if k.StaticPods == "" && k.StaticPodURL == "" {
		k.markListed(&k.staticListed)
		return nil
	}
	period := cmp.Or(max(k.StaticPodPeriod, 0), defaultStaticPeriod)
	urlPeriod := cmp.Or(max(k.StaticPodURLPeriod, 0), defaultStaticPeriod)
	known := map[string]map[types.UID]*corev1.Pod{}
	stamp, lastURL := "", time.Time{}
	ticker := time.NewTicker(min(staticPoll, period, urlPeriod))
	defer ticker.Stop()
	for {
		if now := dirStamp(k.StaticPods); k.StaticPods != "" && (now != stamp || stamp == "") {
			stamp = now
			pods, err := k.readManifests(k.StaticPods)
			k.updateStaticPods(known, "file", pods, err)
		}
		if k.StaticPodURL != "" && time.Since(lastURL) >= urlPeriod {
			lastURL = time.Now()
			pods, err := k.fetchManifest(ctx)
			k.updateStaticPods(known, "http", pods, err)
		}
		k.markListed(&k.staticListed)
		select {
		case <-ctx.Done():
			return nil
		case <-ticker.C:
		}
	}
}

// updateStaticPods compares the pods of a source with those it had before, and starts and stops workers accordingly.
func (k *Kubelet) updateStaticPods(known map[string]map[types.UID]*corev1.Pod, source string, pods []*corev1.Pod, err error) {
	if err != nil {
		k.Log.Warn("failed to read static pods", "source", source, "error", err)
		if pods == nil {
			return
		}
	}
	now := map[types.UID]*corev1.Pod{}
	for _, pod := range pods {
		now[pod.UID] = pod
		if known[source][pod.UID] == nil {
			pod.Annotations[podstate.ConfigSourceAnnotationKey] = source
			pod.Annotations[annotationSeen] = time.Now().Format(time.RFC3339Nano)
		} else {
			now[pod.UID] = known[source][pod.UID]
		}
	}
	for uid := range known[source] {
		if now[uid] == nil {
			k.remove(uid)
		}
	}
	for uid, pod := range now {
		if known[source][uid] == nil {
			k.update(pod)
		}
	}
	known[source] = now
}

// dirStamp is a string that changes when a file in a directory changes.
func dirStamp(path string) string {
	info, err := os.Stat(path)
	if err != nil {
		return "absent"
	}
	var stamp strings.Builder
	fmt.Fprint(&stamp, info.ModTime().UnixNano(), info.Size())
	entries, _ := os.ReadDir(path) // a file has none
	for _, e := range entries {
		if info, err := os.Stat(filepath.Join(path, e.Name())); err == nil {
			fmt.Fprint(&stamp, " ", e.Name(), info.ModTime().UnixNano(), info.Size())
		}
	}
	return stamp.String()
}

// readManifests reads the pods in a file, or in all files of a directory.
func (k *Kubelet) readManifests(path string) ([]*corev1.Pod, error) {
	pods := []*corev1.Pod{}
	info, err := os.Stat(path)
	if errors.Is(err, os.ErrNotExist) {
		return pods, nil
	}
	if err != nil {
		return nil, err
	}
	files := []string{path}
	if info.IsDir() {
		if files, err = filepath.Glob(filepath.Join(path, "*")); err != nil {
			return nil, err
		}
	}
	var errs []error
	for _, file := range files {
		if strings.HasPrefix(filepath.Base(file), ".") {
			continue
		}
		if info, err := os.Stat(file); err != nil || !info.Mode().IsRegular() {
			continue
		}
		data, err := os.ReadFile(file)
		if err != nil {
			errs = append(errs, err)
			continue
		}
		found, err := k.decodeManifest(data, "file:"+file)
		if err != nil {
			errs = append(errs, fmt.Errorf("%s: %w", file, err))
		}
		pods = append(pods, found...)
	}
	return pods, errors.Join(errs...)
}

// fetchManifest reads the pods at StaticPodURL.
func (k *Kubelet) fetchManifest(ctx context.Context) ([]*corev1.Pod, error) {
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, k.StaticPodURL, nil)
	if err != nil {
		return nil, err
	}
	maps.Copy(request.Header, k.StaticPodHeader)
	response, err := (&http.Client{Timeout: 10 * time.Second}).Do(request)
	if err != nil {
		return nil, err
	}
	defer response.Body.Close()
	data, err := io.ReadAll(io.LimitReader(response.Body, maxManifest+1))
	if err != nil {
		return nil, err
	}
	if len(data) > maxManifest {
		return nil, fmt.Errorf("%s: more than %d bytes", k.StaticPodURL, maxManifest)
	}
	if response.StatusCode != http.StatusOK {
		return nil, fmt.Errorf("%s: %s", k.StaticPodURL, response.Status)
	}
	if len(data) == 0 {
		return []*corev1.Pod{}, nil
	}
	return k.decodeManifest(data, "url:"+k.StaticPodURL)
}

// decodeManifest reads one pod, or a list of them.
func (k *Kubelet) decodeManifest(data []byte, source string) ([]*corev1.Pod, error) {
	var list corev1.PodList
	if err := yaml.Unmarshal(data, &list); err == nil && list.Kind == "PodList" {
		var pods []*corev1.Pod
		for i := range list.Items {
			if err := k.staticPod(&list.Items[i], source); err != nil {
				return pods, err
			}
			pods = append(pods, &list.Items[i])
		}
		return pods, nil
	}
	pod := &corev1.Pod{}
	if err := yaml.Unmarshal(data, pod); err != nil {
		return nil, err
	}
	if pod.Kind != "Pod" {
		return nil, fmt.Errorf("invalid pod: kind is %q", pod.Kind)
	}
	if err := k.staticPod(pod, source); err != nil {
		return nil, err
	}
	return []*corev1.Pod{pod}, nil
}

// staticPod sets the UID, name, annotations and defaults of a pod from a manifest, and validates it.
func (k *Kubelet) staticPod(pod *corev1.Pod, source string) error {
	if pod.Name == "" {
		return errors.New("invalid pod: name is needed for the pod")
	}
	if pod.UID == "" {
		text, err := json.Marshal(pod)
		if err != nil {
			return err
		}
		h := fnv.New128a()
		h.Write(text)
		fmt.Fprintf(h, "host:%s%s", k.NodeName, source)
		pod.UID = types.UID(hex.EncodeToString(h.Sum(nil)))
	}
	pod.Name += "-" + strings.ToLower(k.NodeName)
	if pod.Namespace == "" {
		pod.Namespace = metav1.NamespaceDefault
	}
	pod.Spec.NodeName = k.NodeName
	pod.Annotations = maps.Clone(pod.Annotations)
	if pod.Annotations == nil {
		pod.Annotations = map[string]string{}
	}
	pod.Annotations[annotationHash] = string(pod.UID)
	if strings.HasPrefix(source, "file:") {
		// Taints do not evict it.
		pod.Spec.Tolerations = append(pod.Spec.Tolerations, corev1.Toleration{Operator: corev1.TolerationOpExists, Effect: corev1.TaintEffectNoExecute})
	}
	pod.Status.Phase = corev1.PodPending
	core.Pod.Default(pod)
	if errs := podspec.ValidateNewPod(pod); len(errs) > 0 {
		return fmt.Errorf("invalid pod: %w", errs.ToAggregate())
	}
	// It must be able to run without the API server.
	referred, err := container.ReferredObject(&pod.Spec)
	if err != nil {
		return err
	}
	if referred != "" {
		return fmt.Errorf("static pods may not reference %s", referred)
	}
	return nil
}

// observeMirror handles a mirror pod that was added or changed in the API.
func (k *Kubelet) observeMirror(mirror *corev1.Pod) {
	k.mu.Lock()
	k.mirrors[name(mirror)] = mirror
	w := k.staticOf(mirror)
	k.mu.Unlock()
	if w != nil {
		k.writer.Observe(w.uid, mirror)
		w.wakeUp()
	} else if k.allSourcesListed() {
		k.deleteOrphanedMirror(mirror)
	}
}

// staticOf returns the worker of the static pod of a mirror pod. The caller holds mu.
func (k *Kubelet) staticOf(mirror *corev1.Pod) *worker {
	for _, w := range k.workers {
		if pod := w.current(); podstate.IsStatic(pod) && name(pod) == name(mirror) {
			return w
		}
	}
	return nil
}

// mirrorDeleted wakes the worker of a static pod to create its mirror pod again.
func (k *Kubelet) mirrorDeleted(mirror *corev1.Pod) {
	k.mu.Lock()
	if known := k.mirrors[name(mirror)]; known != nil && known.UID == mirror.UID {
		delete(k.mirrors, name(mirror))
	}
	w := k.staticOf(mirror)
	k.mu.Unlock()
	if w != nil {
		w.wakeUp()
	}
}

// deleteOrphanedMirror deletes a mirror pod without a static pod.
func (k *Kubelet) deleteOrphanedMirror(mirror *corev1.Pod) {
	k.mu.Lock()
	ctx := k.ctx
	k.mu.Unlock()
	k.running.Go(func() {
		if err := k.deletePod(ctx, mirror); err != nil && ctx.Err() == nil {
			k.Log.Warn("failed to delete orphaned mirror pod", "pod", describe(mirror), "error", err)
		}
	})
}

func (k *Kubelet) deletePod(ctx context.Context, pod *corev1.Pod) error {
	zero := int64(0)
	err := client.For[*corev1.Pod](k.Client).Delete(ctx, pod.Namespace, pod.Name, metav1.DeleteOptions{
		GracePeriodSeconds: &zero, Preconditions: &metav1.Preconditions{UID: &pod.UID},
	})
	if apierrors.IsNotFound(err) || apierrors.IsConflict(err) {
		return nil
	}
	return err
}

// mirrored reports whether a pod is in the API. A static pod is if it has a mirror pod.
func (k *Kubelet) mirrored(pod *corev1.Pod) bool {
	k.mu.Lock()
	defer k.mu.Unlock()
	return !podstate.IsStatic(pod) || k.mirrors[name(pod)] != nil
}

// ensureMirror creates the mirror pod of a static pod. The pod runs even if that fails.
func (k *Kubelet) ensureMirror(ctx context.Context, pod *corev1.Pod) error {
	if !podstate.IsStatic(pod) {
		return nil
	}
	k.mu.Lock()
	mirror, listed := k.mirrors[name(pod)], k.apiListed
	k.mu.Unlock()
	if !listed {
		return nil
	}
	hash := pod.Annotations[annotationHash]
	if mirror != nil && mirror.DeletionTimestamp == nil && mirror.Annotations[corev1.MirrorPodAnnotationKey] == hash {
		k.writer.Observe(pod.UID, mirror) // it may have been observed before its static pod
		return nil
	}
	if mirror != nil {
		if err := k.deletePod(ctx, mirror); err != nil {
			return nil
		}
	}
	node := k.Node()
	if node == nil || node.UID == "" {
		return nil
	}
	created := &corev1.Pod{ObjectMeta: *pod.ObjectMeta.DeepCopy(), Spec: *pod.Spec.DeepCopy()}
	created.UID, created.ResourceVersion, created.Generation = "", "", 0
	created.Annotations[corev1.MirrorPodAnnotationKey] = hash
	yes := true
	created.OwnerReferences = []metav1.OwnerReference{{APIVersion: "v1", Kind: "Node", Name: node.Name, UID: node.UID, Controller: &yes}}
	created, err := client.For[*corev1.Pod](k.Client).Create(ctx, created, client.WriteOptions{})
	if err == nil {
		k.observeMirror(created)
	} else if !apierrors.IsAlreadyExists(err) && ctx.Err() == nil {
		k.Log.Warn("failed to create mirror pod", "pod", describe(pod), "error", err)
	}
	return nil
}

// deleteMirror deletes the mirror pod of a removed static pod.
func (k *Kubelet) deleteMirror(ctx context.Context, pod *corev1.Pod) error {
	k.mu.Lock()
	mirror := k.mirrors[name(pod)]
	k.mu.Unlock()
	if mirror == nil || mirror.Annotations[corev1.MirrorPodAnnotationKey] != pod.Annotations[annotationHash] {
		return nil
	}
	return wrapped("delete mirror pod", k.deletePod(ctx, mirror))
}

// statusInAPI returns the status of a pod in the API: for a static pod, that of its mirror pod.
func (k *Kubelet) statusInAPI(pod *corev1.Pod) *corev1.PodStatus {
	if podstate.IsStatic(pod) {
		k.mu.Lock()
		defer k.mu.Unlock()
		if mirror := k.mirrors[name(pod)]; mirror != nil && mirror.Annotations[corev1.MirrorPodAnnotationKey] == pod.Annotations[annotationHash] {
			return &mirror.Status
		}
	}
	return &pod.Status
}
