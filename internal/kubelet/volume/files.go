package volume

import (
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	utilerrors "k8s.io/apimachinery/pkg/util/errors"
	"k8s.io/utils/ptr"

	"skiff/internal/container"
	"skiff/internal/kubelet/environment"
)

// apiVolumePlugin returns the plugin of a volume with content from API objects, and whether it is stored in tmpfs:
// everything but config maps may be confidential.
func apiVolumePlugin(volume *corev1.Volume) (plugin string, inMemory bool) {
	switch {
	case volume.ConfigMap != nil:
		return "kubernetes.io/configmap", false
	case volume.Secret != nil:
		return "kubernetes.io/secret", true
	case volume.DownwardAPI != nil:
		return "kubernetes.io/downward-api", true
	}
	return "kubernetes.io/projected", true
}

func (v *Volumes) apiVolume(pod *corev1.Pod, volume *corev1.Volume) *mounted {
	plugin, _ := apiVolumePlugin(volume)
	return &mounted{plugin: plugin, path: v.dir(pod.UID, plugin, volume.Name), readOnly: true, managed: true}
}

// onDisk reports whether an earlier run of the kubelet has set up the volume.
func (v *Volumes) onDisk(pod *corev1.Pod, volume *corev1.Volume) bool {
	if !fromAPIObjects(volume) {
		return false
	}
	_, err := os.Lstat(filepath.Join(v.apiVolume(pod, volume).path, currentLink))
	return err == nil
}

// setUpAPIVolume writes the current content of the API objects into the volume.
func (v *Volumes) setUpAPIVolume(ctx context.Context, pod *corev1.Pod, volume *corev1.Volume, m *mounted) (*mounted, error) {
	files, err := v.collect(ctx, pod, volume)
	if err != nil {
		return nil, err
	}
	hash := hashOf(files)
	if m != nil && m.written == hash && v.onDisk(pod, volume) {
		return m, nil
	}
	set := v.apiVolume(pod, volume)
	if m == nil {
		if _, inMemory := apiVolumePlugin(volume); inMemory {
			err = v.makeTmpfs(set.path, v.tmpfsSize(pod, nil))
		} else {
			err = v.makeDir(set.path, 0o777)
		}
		if err != nil {
			return nil, err
		}
		if err := makeNestedMountPoints(set.path, pod, volume.Name); err != nil {
			return nil, err
		}
	}
	finish := func() error { return nil }
	if group := fsGroup(pod); group != nil {
		finish = func() error { return setGroup(ctx, set.path, *group, true, nil) }
	}
	if _, err := write(set.path, files, finish); err != nil {
		return nil, err
	}
	set.written = hash
	return set, nil
}

func hashOf(files payload) [32]byte {
	sum := sha256.New()
	for _, path := range slices.Sorted(maps.Keys(files)) {
		content := files[path]
		owner := int64(-1)
		if content.owner != nil {
			owner = *content.owner
		}
		fmt.Fprintf(sum, "%q %o %d %d\n", path, content.mode, owner, len(content.data))
		sum.Write(content.data)
	}
	return [32]byte(sum.Sum(nil))
}

// makeNestedMountPoints creates directories for volumes that are mounted inside this one, which is read-only in
// containers.
func makeNestedMountPoints(dir string, pod *corev1.Pod, volume string) error {
	root, err := os.OpenRoot(dir)
	if err != nil {
		return err
	}
	defer root.Close()
	for _, c := range container.All(&pod.Spec) {
		for _, mount := range c.VolumeMounts {
			if mount.Name != volume {
				continue
			}
			for _, inner := range c.VolumeMounts {
				path, below := strings.CutPrefix(filepath.Clean(inner.MountPath), filepath.Clean(mount.MountPath)+"/")
				if !below {
					continue
				}
				if err := root.MkdirAll(path, 0o755); err != nil && !errors.Is(err, os.ErrExist) {
					return fmt.Errorf("unable to create nested volume mountpoints: %w", err)
				}
			}
		}
	}
	return nil
}

// collect returns the content of a volume.
func (v *Volumes) collect(ctx context.Context, pod *corev1.Pod, volume *corev1.Volume) (payload, error) {
	switch {
	case volume.ConfigMap != nil:
		source := volume.ConfigMap
		return v.configMapFiles(pod, source.Name, source.Items, source.DefaultMode, source.Optional)
	case volume.Secret != nil:
		source := volume.Secret
		return v.secretFiles(pod, source.SecretName, source.Items, source.DefaultMode, source.Optional)
	case volume.DownwardAPI != nil:
		return v.downwardFiles(pod, volume.DownwardAPI.Items, volume.DownwardAPI.DefaultMode)
	}
	return v.projectedFiles(ctx, pod, volume)
}

func (v *Volumes) configMapFiles(pod *corev1.Pod, name string, items []corev1.KeyToPath, mode *int32, optional *bool) (payload, error) {
	configMap, err := v.Objects.ConfigMap(pod.Namespace, name)
	if apierrors.IsNotFound(err) && ptr.Deref(optional, false) {
		configMap, err = &corev1.ConfigMap{}, nil
	}
	if err != nil {
		return nil, err
	}
	data := make(map[string][]byte, len(configMap.Data)+len(configMap.BinaryData))
	maps.Copy(data, configMap.BinaryData)
	for key, value := range configMap.Data {
		data[key] = []byte(value)
	}
	return selectKeys(data, items, mode, optional, "configmap references non-existent config key: %s")
}

func (v *Volumes) secretFiles(pod *corev1.Pod, name string, items []corev1.KeyToPath, mode *int32, optional *bool) (payload, error) {
	secret, err := v.Objects.Secret(pod.Namespace, name)
	if apierrors.IsNotFound(err) && ptr.Deref(optional, false) {
		secret, err = &corev1.Secret{}, nil
	}
	if err != nil {
		return nil, err
	}
	return selectKeys(secret.Data, items, mode, optional, "references non-existent secret key: %s")
}

// selectKeys returns a file for each item, or for every key if there are no items.
func selectKeys(data map[string][]byte, items []corev1.KeyToPath, mode *int32, optional *bool, absent string) (payload, error) {
	if mode == nil {
		return nil, errors.New("no defaultMode used, not even the default value for it")
	}
	files := payload{}
	if len(items) == 0 {
		for key, value := range data {
			files[key] = file{data: value, mode: *mode}
		}
		return files, nil
	}
	for _, item := range items {
		value, ok := data[item.Key]
		if !ok && ptr.Deref(optional, false) {
			continue
		}
		if !ok {
			return nil, fmt.Errorf(absent, item.Key)
		}
		files[item.Path] = file{data: value, mode: modeOr(item.Mode, *mode)}
	}
	return files, nil
}

func (v *Volumes) downwardFiles(pod *corev1.Pod, items []corev1.DownwardAPIVolumeFile, mode *int32) (payload, error) {
	if mode == nil {
		return nil, errors.New("no defaultMode used, not even the default value for it")
	}
	files := payload{}
	var failures []error
	for _, item := range items {
		value, err := "", error(nil)
		switch {
		case item.FieldRef != nil:
			value, err = environment.Field(pod, item.FieldRef, environment.Addresses{})
		case item.ResourceFieldRef != nil:
			value, err = v.resource(pod, item.ResourceFieldRef)
		}
		if err != nil {
			failures = append(failures, err)
			continue
		}
		files[item.Path] = file{data: []byte(value), mode: modeOr(item.Mode, *mode)}
	}
	return files, utilerrors.NewAggregate(failures)
}

func (v *Volumes) resource(pod *corev1.Pod, ref *corev1.ResourceFieldSelector) (string, error) {
	node := v.Node()
	if node == nil {
		return "", errors.New("failed to find node object, expected a node")
	}
	c, _, err := environment.FindContainer(pod, ref.ContainerName)
	if err != nil {
		return "", err
	}
	return environment.Resource(c, ref, node.Status.Allocatable)
}

// projectedFiles merges the files of all sources. If paths collide, the later source wins.
func (v *Volumes) projectedFiles(ctx context.Context, pod *corev1.Pod, volume *corev1.Volume) (payload, error) {
	projected := volume.Projected
	if projected.DefaultMode == nil {
		return nil, errors.New("no defaultMode used, not even the default value for it")
	}
	all := payload{}
	var failures []error
	for i := range projected.Sources {
		files, err := v.sourceFiles(ctx, pod, volume, i)
		if err != nil {
			failures = append(failures, err)
			continue
		}
		maps.Copy(all, files)
	}
	if len(failures) > 0 {
		return nil, utilerrors.NewAggregate(failures)
	}
	return all, nil
}

func (v *Volumes) sourceFiles(ctx context.Context, pod *corev1.Pod, volume *corev1.Volume, index int) (payload, error) {
	projected := volume.Projected
	source := &projected.Sources[index]
	switch {
	case source.ConfigMap != nil:
		return v.configMapFiles(pod, source.ConfigMap.Name, source.ConfigMap.Items, projected.DefaultMode, source.ConfigMap.Optional)
	case source.Secret != nil:
		return v.secretFiles(pod, source.Secret.Name, source.Secret.Items, projected.DefaultMode, source.Secret.Optional)
	case source.DownwardAPI != nil:
		return v.downwardFiles(pod, source.DownwardAPI.Items, projected.DefaultMode)
	case source.ServiceAccountToken != nil:
		token, err := v.tokens.get(ctx, pod, source.ServiceAccountToken, true)
		return payload{source.ServiceAccountToken.Path: credential(pod, []byte(token.text), *projected.DefaultMode)}, err
	case source.ClusterTrustBundle != nil:
		anchors, err := v.trustAnchors(source.ClusterTrustBundle)
		return payload{source.ClusterTrustBundle.Path: credential(pod, anchors, *projected.DefaultMode)}, err
	case source.PodCertificate != nil:
		key, chain, err := v.certificates.get(ctx, pod, volume.Name, index, source.PodCertificate)
		if err != nil {
			return nil, err
		}
		files := payload{}
		for path, data := range map[string][]byte{
			source.PodCertificate.CredentialBundlePath: slices.Concat(key, chain),
			source.PodCertificate.KeyPath:              key,
			source.PodCertificate.CertificateChainPath: chain,
		} {
			if path != "" {
				files[path] = credential(pod, data, *projected.DefaultMode)
			}
		}
		return files, nil
	}
	return nil, nil
}

// credential returns a file that only the pod can read: the user all its containers run as, or its fsGroup.
func credential(pod *corev1.Pod, data []byte, mode int32) file {
	owner := onlyUser(pod)
	if owner != nil || fsGroup(pod) != nil {
		mode = 0o600
	}
	return file{data: data, mode: mode, owner: owner}
}

// onlyUser returns the user that all containers of the pod run as, nil if they differ or do not specify one.
func onlyUser(pod *corev1.Pod) *int64 {
	var only *int64
	for _, c := range container.All(&pod.Spec) {
		var user *int64
		if pod.Spec.SecurityContext != nil {
			user = pod.Spec.SecurityContext.RunAsUser
		}
		if c.SecurityContext != nil && c.SecurityContext.RunAsUser != nil {
			user = c.SecurityContext.RunAsUser
		}
		if user == nil || only != nil && *only != *user {
			return nil
		}
		only = user
	}
	return only
}

func modeOr(mode *int32, otherwise int32) int32 {
	if mode != nil {
		return *mode
	}
	return otherwise
}
