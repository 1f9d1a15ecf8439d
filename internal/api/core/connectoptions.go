package core

import (
	"net/url"
	"strconv"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime"

	"skiff/internal/kind"
)

// The options of connections, as admission sees them.

func execOptions(query url.Values, _ string) (runtime.Object, error) {
	return &corev1.PodExecOptions{
		Stdin: kind.QueryFlag(query, "stdin"), Stdout: kind.QueryFlag(query, "stdout"), Stderr: kind.QueryFlag(query, "stderr"),
		TTY: kind.QueryFlag(query, "tty"), Container: query.Get("container"), Command: query["command"],
	}, nil
}

func attachOptions(query url.Values, _ string) (runtime.Object, error) {
	return &corev1.PodAttachOptions{
		Stdin: kind.QueryFlag(query, "stdin"), Stdout: kind.QueryFlag(query, "stdout"), Stderr: kind.QueryFlag(query, "stderr"),
		TTY: kind.QueryFlag(query, "tty"), Container: query.Get("container"),
	}, nil
}

func portForwardOptions(query url.Values, _ string) (runtime.Object, error) {
	options := &corev1.PodPortForwardOptions{}
	for _, text := range query["ports"] {
		port, err := strconv.ParseInt(text, 10, 32)
		if err != nil {
			return nil, apierrors.NewBadRequest(err.Error())
		}
		options.Ports = append(options.Ports, int32(port))
	}
	return options, nil
}

func podProxyOptions(_ url.Values, path string) (runtime.Object, error) {
	return &corev1.PodProxyOptions{Path: path}, nil
}

func serviceProxyOptions(_ url.Values, path string) (runtime.Object, error) {
	return &corev1.ServiceProxyOptions{Path: path}, nil
}

func nodeProxyOptions(_ url.Values, path string) (runtime.Object, error) {
	return &corev1.NodeProxyOptions{Path: path}, nil
}
