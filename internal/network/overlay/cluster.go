package overlay

import (
	"context"
	"fmt"
	"log/slog"
	"maps"
	"net/netip"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"

	"skiff/internal/client"
)

// The ConfigMap with the cluster's network, for nodes on other hosts.
const (
	ConfigMapNamespace = metav1.NamespaceSystem
	ConfigMapName      = "skiff-network"

	keyClusterCIDR = "clusterCIDR"
	keyBackend     = "networkBackend"
)

// writePeriod is the least time between two writes of the ConfigMap. Two servers with different flags correct each other no faster.
const writePeriod = time.Second

// Cluster is what all nodes of a cluster agree on.
type Cluster struct {
	Backend Backend
	// CIDRs are those of all pods, at most one of each family.
	CIDRs []netip.Prefix
}

// data is the content of the ConfigMap.
func (c Cluster) data() map[string]string {
	var texts []string
	for _, p := range c.CIDRs {
		texts = append(texts, p.String())
	}
	return map[string]string{keyBackend: string(c.Backend), keyClusterCIDR: strings.Join(texts, ",")}
}

// ConfigMap is the ConfigMap with what nodes have to know.
func (c Cluster) ConfigMap() *corev1.ConfigMap {
	return &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: ConfigMapNamespace, Name: ConfigMapName}, Data: c.data()}
}

// ParseCluster reads the ConfigMap.
func ParseCluster(object *corev1.ConfigMap) (c Cluster, err error) {
	if c.Backend, err = ParseBackend(object.Data[keyBackend]); err != nil {
		return c, fmt.Errorf("ConfigMap %s, %s: %w", ConfigMapName, keyBackend, err)
	}
	for text := range strings.SplitSeq(object.Data[keyClusterCIDR], ",") {
		if text == "" {
			continue
		}
		p, err := netip.ParsePrefix(text)
		if err != nil {
			return c, fmt.Errorf("ConfigMap %s, %s: %w", ConfigMapName, keyClusterCIDR, err)
		}
		c.CIDRs = append(c.CIDRs, p.Masked())
	}
	return c, nil
}

// ReadCluster reads what the server has published.
func ReadCluster(ctx context.Context, c *client.Client) (Cluster, error) {
	object, err := client.For[*corev1.ConfigMap](c).Get(ctx, ConfigMapNamespace, ConfigMapName)
	if err != nil {
		return Cluster{}, err
	}
	return ParseCluster(object)
}

// RunCluster keeps the ConfigMap until ctx is done, also after somebody has changed or deleted it.
func RunCluster(ctx context.Context, c *client.Client, cluster Cluster, log *slog.Logger) error {
	wake := make(chan struct{}, 1)
	signal := func() bool {
		select {
		case wake <- struct{}{}:
		default:
		}
		return true
	}
	following := make(chan struct{})
	go func() {
		defer close(following)
		named := client.Selector{Fields: fields.OneTermEqualSelector("metadata.name", ConfigMapName)}
		client.For[*corev1.ConfigMap](c).Follow(ctx, ConfigMapNamespace, named, client.FollowHandler[*corev1.ConfigMap]{
			Replace: func([]*corev1.ConfigMap) bool { return signal() },
			Apply:   func(*corev1.ConfigMap, bool) bool { return signal() },
			Fail:    func(err error) { log.Warn("failed to watch the settings of the cluster's network", "error", err) },
		})
	}()
	defer func() { <-following }()
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-wake:
		}
		written, err := cluster.write(ctx, c)
		if err != nil && ctx.Err() == nil {
			log.Error("failed to write the settings of the cluster's network", "error", err)
			signal()
		}
		if !written && err == nil {
			continue
		}
		select {
		case <-ctx.Done():
		case <-time.After(writePeriod):
		}
	}
}

// write creates the ConfigMap or corrects it, and reports whether it had to. Keys of others are left alone.
func (c Cluster) write(ctx context.Context, remote *client.Client) (written bool, err error) {
	configMaps := client.For[*corev1.ConfigMap](remote)
	object, err := configMaps.Get(ctx, ConfigMapNamespace, ConfigMapName)
	if apierrors.IsNotFound(err) {
		_, err = configMaps.Create(ctx, c.ConfigMap(), client.WriteOptions{})
		if apierrors.IsAlreadyExists(err) {
			return false, nil // the event brings it here again
		}
		return true, err
	}
	if err != nil {
		return false, err
	}
	changed := object.DeepCopy()
	if changed.Data == nil {
		changed.Data = map[string]string{}
	}
	maps.Copy(changed.Data, c.data())
	if maps.Equal(changed.Data, object.Data) {
		return false, nil
	}
	_, err = configMaps.Update(ctx, changed, client.WriteOptions{})
	if apierrors.IsConflict(err) || apierrors.IsNotFound(err) {
		return false, nil // the event of that change brings it here again
	}
	return true, err
}
