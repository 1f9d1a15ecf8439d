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
	"io/fs"
	"maps"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"golang.org/x/sys/unix"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/yaml"

	"skiff/internal/api/core"
	"skiff/internal/api/podspec"
	"skiff/internal/container"
	"skiff/internal/podstate"
)

// The annotations of static pods and mirror pods. The hash is of the manifest, its path and the node's name.
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

// manifest is a file, or the content of a URL, with the pods that it describes.
type manifest struct {
	path string
	pods []*corev1.Pod
	// err is why the pods could not be read. unreadable reports that not even the content could be.
	err        error
	unreadable bool
}

// staticSource is one source of static pods: a file or directory, or a URL. It is used by one goroutine.
type staticSource struct {
	// name is the value of the annotation of its pods: file or http.
	name string
	// manifests are the pods of each manifest when it could last be read, by path.
	manifests map[string][]*corev1.Pod
	// pods are the pods that have a worker. Of several manifests of one pod the last by path wins.
	pods map[types.NamespacedName]*corev1.Pod
	// listed is set when all manifests were read once. Until then the node may have static pods that the source does not know.
	listed bool
	// failed is set while something could not be read; lastError is the text that was logged about it.
	failed    bool
	lastError string
}

// watchStatic watches the static pod manifests until ctx is done. While a manifest cannot be read or decoded, its pods are kept.
func (k *Kubelet) watchStatic(ctx context.Context) error {
	if k.StaticPods == "" && k.StaticPodURL == "" {
		k.markListed(&k.staticListed)
		return nil
	}
	period := cmp.Or(max(k.StaticPodPeriod, 0), defaultStaticPeriod)
	urlPeriod := cmp.Or(max(k.StaticPodURLPeriod, 0), defaultStaticPeriod)
	files := &staticSource{name: "file", listed: k.StaticPods == ""}
	url := &staticSource{name: "http", listed: k.StaticPodURL == ""}
	stamp, lastFiles, lastURL := "", time.Time{}, time.Time{}
	ticker := time.NewTicker(min(staticPoll, period, urlPeriod))
	defer ticker.Stop()
	for {
		if k.StaticPods != "" {
			newStamp := dirStamp(k.StaticPods)
			if newStamp != stamp || files.failed && time.Since(lastFiles) >= period {
				stamp, lastFiles = newStamp, time.Now()
				k.updateStaticPods(files, k.readManifests)
			}
		}
		if k.StaticPodURL != "" && time.Since(lastURL) >= urlPeriod {
			lastURL = time.Now()
			k.updateStaticPods(url, func() ([]manifest, error) { return k.fetchManifest(ctx) })
		}
		if files.listed && url.listed {
			k.markListed(&k.staticListed)
		}
		select {
		case <-ctx.Done():
			return nil
		case <-ticker.C:
		}
	}
}

// updateStaticPods reads the manifests of a source, compares their pods with those it had before, and starts and stops workers accordingly.
func (k *Kubelet) updateStaticPods(source *staticSource, read func() ([]manifest, error)) {
	manifests, err := read()
	errs, unreadable := []error{err}, err != nil
	if err == nil {
		known := map[string][]*corev1.Pod{}
		for _, m := range manifests {
			if m.err != nil {
				errs, unreadable = append(errs, fmt.Errorf("%s: %w", m.path, m.err)), unreadable || m.unreadable
				m.pods = source.manifests[m.path]
			}
			known[m.path] = m.pods
		}
		source.manifests = known
		k.setStaticPods(source)
	}
	source.listed = source.listed || !unreadable
	err = errors.Join(errs...)
	source.failed = err != nil
	text := ""
	if err != nil {
		text = err.Error()
	}
	if text != "" && text != source.lastError {
		k.Log.Warn("failed to read static pods", "source", source.name, "error", err)
	}
	source.lastError = text
}

// setStaticPods starts, replaces and stops workers, so that they are those of the source's manifests.
func (k *Kubelet) setStaticPods(source *staticSource) {
	pods := map[types.NamespacedName]*corev1.Pod{}
	for _, path := range slices.Sorted(maps.Keys(source.manifests)) {
		for _, pod := range source.manifests[path] {
			pods[name(pod)] = pod
		}
	}
	for key, old := range source.pods {
		if pod := pods[key]; pod == nil || pod.UID != old.UID {
			k.remove(old.UID)
		}
	}
	for key, pod := range pods {
		if old := source.pods[key]; old != nil && old.UID == pod.UID && !isManifestChanged(old, pod) {
			pods[key] = old
			continue
		}
		pod.Annotations[podstate.ConfigSourceAnnotationKey] = source.name
		pod.Annotations[annotationSeen] = time.Now().Format(time.RFC3339Nano)
		k.update(pod)
	}
	source.pods = pods
}

// isManifestChanged reports whether the manifest of a static pod has changed. Pods of the API have none.
func isManifestChanged(old, pod *corev1.Pod) bool {
	return podstate.IsStatic(old) && old.Annotations[annotationHash] != pod.Annotations[annotationHash]
}

// dirStamp is a string that changes when a file in a directory changes.
func dirStamp(path string) string {
	var stamp strings.Builder
	add := func(path string) error {
		var s unix.Stat_t
		if err := unix.Stat(path, &s); err != nil {
			return err
		}
		// A file that was moved here may have an old modification time.
		fmt.Fprintf(&stamp, "%s %d %d %d %d\n", path, s.Ino, s.Size, s.Mtim.Nano(), s.Ctim.Nano())
		return nil
	}
	if err := add(path); err != nil {
		return "failed: " + err.Error()
	}
	entries, _ := os.ReadDir(path) // a file has none
	for _, e := range entries {
		_ = add(filepath.Join(path, e.Name())) // it was removed, which changes the directory
	}
	return stamp.String()
}

// readManifests reads the manifests in a file, or in all files of a directory. A path that does not exist has none.
func (k *Kubelet) readManifests() ([]manifest, error) {
	path := k.StaticPods
	info, err := os.Stat(path)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	if !info.IsDir() {
		return []manifest{k.readManifest(path)}, nil
	}
	entries, err := os.ReadDir(path)
	if err != nil {
		return nil, err
	}
	var manifests []manifest
	for _, e := range entries {
		if strings.HasPrefix(e.Name(), ".") {
			continue
		}
		file := filepath.Join(path, e.Name())
		info, err := os.Stat(file)
		switch {
		case errors.Is(err, fs.ErrNotExist): // removed since, or a link to nothing
		case err != nil:
			manifests = append(manifests, manifest{path: file, err: err, unreadable: true})
		case info.Mode().IsRegular():
			manifests = append(manifests, k.readManifest(file))
		}
	}
	return manifests, nil
}

// readManifest reads the pods of a file.
func (k *Kubelet) readManifest(path string) manifest {
	data, err := readAtMost(path, maxManifest)
	if err != nil {
		return manifest{path: path, err: err, unreadable: true}
	}
	pods, err := k.decodeManifest(data, "file:"+path)
	return manifest{path: path, pods: pods, err: err}
}

func readAtMost(path string, limit int64) ([]byte, error) {
	file, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer file.Close()
	return readBounded(file, limit)
}

// readBounded reads everything, or fails if that is more than limit bytes.
func readBounded(r io.Reader, limit int64) ([]byte, error) {
	data, err := io.ReadAll(io.LimitReader(r, limit+1))
	if err == nil && int64(len(data)) > limit {
		return nil, fmt.Errorf("more than %d bytes", limit)
	}
	return data, err
}

// fetchManifest reads the pods at StaticPodURL.
func (k *Kubelet) fetchManifest(ctx context.Context) ([]manifest, error) {
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
	data, err := readBounded(response.Body, maxManifest)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", k.StaticPodURL, err)
	}
	if response.StatusCode != http.StatusOK {
		return nil, fmt.Errorf("%s: %s", k.StaticPodURL, response.Status)
	}
	m := manifest{path: k.StaticPodURL}
	if len(data) > 0 {
		m.pods, m.err = k.decodeManifest(data, "url:"+k.StaticPodURL)
	}
	return []manifest{m}, nil
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
	text, err := json.Marshal(pod)
	if err != nil {
		return err
	}
	h := fnv.New128a()
	h.Write(text)
	fmt.Fprintf(h, "host:%s%s", k.NodeName, source)
	hash := hex.EncodeToString(h.Sum(nil))
	pod.UID = cmp.Or(pod.UID, types.UID(hash))
	pod.Name += "-" + strings.ToLower(k.NodeName)
	if pod.Namespace == "" {
		pod.Namespace = metav1.NamespaceDefault
	}
	pod.Spec.NodeName = k.NodeName
	pod.Annotations = maps.Clone(pod.Annotations)
	if pod.Annotations == nil {
		pod.Annotations = map[string]string{}
	}
	pod.Annotations[annotationHash] = hash // upstream has the UID here, and so misses edits of a manifest with a UID of its own
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
