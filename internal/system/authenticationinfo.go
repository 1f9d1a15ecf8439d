package system

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"skiff/internal/config"
	"skiff/internal/kind"
	"skiff/internal/pki"
)

// The ConfigMap in which API servers publish how they authenticate clients and front proxies, for extension API servers and components.
const (
	publishedNamespace   = "kube-system"
	publishedName        = "extension-apiserver-authentication"
	publishedClientCA    = "client-ca-file"
	publishedProxyCA     = "requestheader-client-ca-file"
	publishedProxyNames  = "requestheader-allowed-names"
	publishedUserHeader  = "requestheader-username-headers"
	publishedUIDHeader   = "requestheader-uid-headers"
	publishedGroupHeader = "requestheader-group-headers"
	publishedExtraPrefix = "requestheader-extra-headers-prefix"
)

// The CAs may be reloaded, and other API servers may add theirs.
const (
	publishInterval      = time.Minute
	publishRetryInterval = 5 * time.Second
)

// runAuthenticationInfo keeps the published ConfigMap up to date until ctx is done.
func (s *server) runAuthenticationInfo(ctx context.Context) error {
	published := false
	for {
		wait := publishInterval
		if err := publishAuthentication(ctx, s.api.KindClient(), s.certs, s.config.Authentication.RequestHeader); err != nil && ctx.Err() == nil {
			s.log.Error("failed to publish client CAs", "namespace", publishedNamespace, "configMap", publishedName, "error", err)
			wait = publishRetryInterval
		} else if !published {
			published = true
			s.hooks.Done(hookClusterAuthentication)
		}
		select {
		case <-time.After(wait):
		case <-ctx.Done():
			return nil
		}
	}
}

// publishAuthentication adds this server's CAs, names and headers to the ConfigMap. What other servers have published is kept, except for
// certificates that have expired.
func publishAuthentication(ctx context.Context, client kind.Client, certs *certificates, headers config.RequestHeader) error {
	resource := corev1.Resource("configmaps")
	found, err := client.Get(ctx, resource, publishedNamespace, publishedName)
	if apierrors.IsNotFound(err) {
		data, err := mergeAuthentication(nil, certs, headers, time.Now())
		if err != nil {
			return err
		}
		_, err = client.Create(ctx, resource, &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: publishedNamespace, Name: publishedName}, Data: data})
		return err
	}
	if err != nil {
		return err
	}
	if data, err := mergeAuthentication(found.(*corev1.ConfigMap).Data, certs, headers, time.Now()); err != nil || maps.Equal(data, found.(*corev1.ConfigMap).Data) {
		return err
	}
	_, err = client.Update(ctx, resource, publishedNamespace, publishedName, func(obj kind.Object) error {
		published := obj.(*corev1.ConfigMap)
		data, err := mergeAuthentication(published.Data, certs, headers, time.Now())
		if err == nil {
			published.Data = data
		}
		return err
	})
	return err
}

// mergeAuthentication returns the data of the ConfigMap with this server's additions.
func mergeAuthentication(data map[string]string, certs *certificates, headers config.RequestHeader, now time.Time) (map[string]string, error) {
	merged := maps.Clone(data)
	if merged == nil {
		merged = map[string]string{}
	}
	var errs []error
	for key, bundle := range map[string]*pki.CABundle{publishedClientCA: certs.clientCAs, publishedProxyCA: certs.frontProxyCAs} {
		text, err := pki.MergeCertificates(now, []byte(data[key]), bundle.PEM())
		if err != nil {
			errs = append(errs, fmt.Errorf("%s: %w", key, err))
		}
		merged[key] = string(text)
	}
	for key, values := range map[string][]string{
		publishedProxyNames: certs.frontProxyNames, publishedUserHeader: headers.UsernameHeaders, publishedUIDHeader: headers.UIDHeaders,
		publishedGroupHeader: headers.GroupHeaders, publishedExtraPrefix: headers.ExtraHeaderPrefixes,
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
