// Package clusterauthentication publishes how API servers authenticate clients and front proxies, in a ConfigMap for extension API servers
// and components that run alone. It runs inside every API server, without leader election.
package clusterauthentication

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"skiff/internal/client"
	"skiff/internal/pki"
)

// The ConfigMap, and its key for the CAs of client certificates.
const (
	Namespace   = "kube-system"
	Name        = "extension-apiserver-authentication"
	ClientCAKey = "client-ca-file"
)

const (
	proxyCAKey     = "requestheader-client-ca-file"
	proxyNamesKey  = "requestheader-allowed-names"
	userHeaderKey  = "requestheader-username-headers"
	uidHeaderKey   = "requestheader-uid-headers"
	groupHeaderKey = "requestheader-group-headers"
	extraPrefixKey = "requestheader-extra-headers-prefix"
)

// The CAs may be reloaded, and other API servers may add theirs.
const (
	publishInterval = time.Minute
	retryInterval   = time.Second
)

// Config is what one API server publishes.
type Config struct {
	Client *client.Client
	// ClientCAs sign the client certificates of users, FrontProxyCAs those of front proxies, which have one of FrontProxyNames.
	ClientCAs, FrontProxyCAs *pki.CABundle
	FrontProxyNames          []string
	// The headers in which front proxies name the user.
	UsernameHeaders, UIDHeaders, GroupHeaders, ExtraHeaderPrefixes []string
	// OnPublished is called once, when the ConfigMap first has this server's part.
	OnPublished func()
	Log         *slog.Logger
}

// Run keeps the ConfigMap up to date until ctx is done.
func Run(ctx context.Context, c Config) error {
	published := false
	for {
		wait := publishInterval
		if err := publish(ctx, &c); err != nil && ctx.Err() == nil {
			wait = retryInterval
			if !apierrors.IsConflict(err) && !apierrors.IsAlreadyExists(err) {
				c.Log.Error("failed to publish client CAs", "namespace", Namespace, "configMap", Name, "error", err)
			}
		} else if err == nil && !published {
			published = true
			c.OnPublished()
		}
		select {
		case <-time.After(wait):
		case <-ctx.Done():
			return nil
		}
	}
}

// publish adds this server's CAs, names and headers to the ConfigMap. What other servers have published is kept, except for certificates
// that have expired. The error is a conflict when another server has written at the same time.
func publish(ctx context.Context, c *Config) error {
	configMaps := client.For[*corev1.ConfigMap](c.Client)
	found, err := configMaps.Get(ctx, Namespace, Name)
	if apierrors.IsNotFound(err) {
		data, err := merge(nil, c, time.Now())
		if err != nil {
			return err
		}
		_, err = configMaps.Create(ctx, &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: Namespace, Name: Name}, Data: data}, client.WriteOptions{})
		return err
	}
	if err != nil {
		return err
	}
	data, err := merge(found.Data, c, time.Now())
	if err != nil || maps.Equal(data, found.Data) {
		return err
	}
	changed := found.DeepCopy()
	changed.Data = data
	_, err = configMaps.Update(ctx, changed, client.WriteOptions{})
	return err
}

// merge returns the data of the ConfigMap with this server's additions.
func merge(data map[string]string, c *Config, now time.Time) (map[string]string, error) {
	merged := maps.Clone(data)
	if merged == nil {
		merged = map[string]string{}
	}
	var errs []error
	for key, bundle := range map[string]*pki.CABundle{ClientCAKey: c.ClientCAs, proxyCAKey: c.FrontProxyCAs} {
		text, err := pki.MergeCertificates(now, []byte(data[key]), bundle.PEM())
		if err != nil {
			errs = append(errs, fmt.Errorf("%s: %w", key, err))
		}
		merged[key] = string(text)
	}
	for key, values := range map[string][]string{
		proxyNamesKey: c.FrontProxyNames, userHeaderKey: c.UsernameHeaders, uidHeaderKey: c.UIDHeaders,
		groupHeaderKey: c.GroupHeaders, extraPrefixKey: c.ExtraHeaderPrefixes,
	} {
		list := []string{}
		if text := data[key]; text != "" {
			if err := json.Unmarshal([]byte(text), &list); err != nil {
				errs = append(errs, fmt.Errorf("%s: %w", key, err))
			}
		}
		for _, value := range values {
			if !slices.Contains(list, value) {
				list = append(list, value)
			}
		}
		text, err := json.Marshal(list)
		if err != nil {
			errs = append(errs, err)
		}
		merged[key] = string(text)
	}
	return merged, errors.Join(errs...)
}
