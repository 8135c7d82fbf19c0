"""Installations as administrators have them: each is rendered, shown to the real API server and searched for rights."""

from __future__ import annotations

from typing import Any

PEM = "-----BEGIN CERTIFICATE-----\nMIIB\n-----END CERTIFICATE-----\n"
DIGEST = "sha256:" + "0123456789abcdef" * 4

MONITORING = {
    "scraper": {"serviceAccount": "prometheus", "namespace": "monitoring"},
    "serviceMonitor": {"enabled": True, "labels": {"release": "prometheus"}},
    "podMonitor": {"enabled": True, "interval": "15s"},
    "rules": {"enabled": True},
    "dashboards": {"enabled": True, "annotations": {"grafana_folder": "Stoker"}},
}
PLACED = {
    "priorityClassName": "system-cluster-critical",
    "nodeSelector": {"node-role.kubernetes.io/control-plane": ""},
    "tolerations": [{"key": "node-role.kubernetes.io/control-plane", "operator": "Exists", "effect": "NoSchedule"}],
    "affinity": {
        "nodeAffinity": {
            "preferredDuringSchedulingIgnoredDuringExecution": [
                {"weight": 1, "preference": {"matchExpressions": [{"key": "gpu", "operator": "DoesNotExist"}]}}
            ]
        }
    },
    "podAnnotations": {"example.com/team": "platform"},
    "resources": {"requests": {"cpu": 1, "memory": "1Gi"}, "limits": {"memory": "2Gi"}},
    "extraArgs": ["--host=0.0.0.0"],
    "extraEnv": [
        {"name": "TZ", "value": "UTC"},
        {"name": "NODE", "valueFrom": {"fieldRef": {"fieldPath": "spec.nodeName"}}},
    ],
    "serviceAccount": {"create": True, "name": "", "annotations": {"eks.amazonaws.com/role-arn": "arn:x"}},
}

MATRIX: dict[str, dict[str, Any]] = {
    "default": {},
    "one operator": {"operator": {"replicas": 1}, "topology": {"levels": ["topology.kubernetes.io/zone", "rack"]}},
    "three operators, placed": {
        "operator": PLACED
        | {
            "replicas": 3,
            "logFormat": "json",
            "topologySpreadConstraints": [
                {
                    "maxSkew": 1,
                    "topologyKey": "kubernetes.io/hostname",
                    "whenUnsatisfiable": "DoNotSchedule",
                    "labelSelector": {"matchLabels": {"app.kubernetes.io/component": "operator"}},
                }
            ],
        },
        "api": PLACED,
        "podAnnotations": {"example.com/cost-center": "7"},
        "commonLabels": {"example.com/owner": "platform"},
    },
    "no definitions": {"crds": {"enabled": False}},
    "definitions go with it": {"crds": {"keep": False}},
    "tls of the api's own": {"api": {"tls": {"secretName": "api-tls"}}, "caBundle": {"pem": PEM}},
    "tls by cert-manager": {
        "api": {"tls": {"secretName": "api-tls"}},
        "caBundle": {"secret": {"name": "api-tls"}},
        "exporter": {"ca": {"secret": "api-ca"}},
    },
    "ingress": {
        "api": {
            "ingress": {
                "enabled": True,
                "className": "nginx",
                "host": "stoker.example",
                "annotations": {"nginx.ingress.kubernetes.io/proxy-read-timeout": "3600"},
                "tls": {"secretName": "stoker-tls"},
            }
        }
    },
    "load balancer": {
        "api": {
            "service": {
                "type": "LoadBalancer",
                "port": 443,
                "nodePort": 30470,
                "loadBalancerSourceRanges": ["10.0.0.0/8"],
                "annotations": {"example.com/internal": "true"},
            },
            "allowHosts": ["stoker.example"],
            "audiences": ["stoker.example"],
        }
    },
    "air-gapped": {
        "image": {
            "registry": "registry.example:5000/mirror",
            "pullSecrets": ["mirror", "other"],
            "controlPlane": {"digest": DIGEST},
            "trainer": {"repository": "trainer-cpu", "tag": "1.2.3"},
        },
        "caBundle": {"configMap": {"name": "corporate", "key": "bundle.pem"}},
    },
    "monitored": {"monitoring": MONITORING},
    "monitored over tls": {
        "monitoring": MONITORING | {"serviceMonitor": {"enabled": True, "credentials": {"secretName": "scraper"}}},
        "api": {"tls": {"secretName": "api-tls"}},
        "caBundle": {"configMap": {"name": "corporate"}},
        "exporter": {
            "ca": {"configMap": "corporate"},
            "tls": {"secretName": "exporter-tls"},
            "auth": {"secretName": "exporter-auth", "key": "bearer"},
        },
    },
    "pushed": {
        "monitoring": {
            "push": {
                "url": "https://prometheus.example:8443/api/v1/write",
                "tokenSecret": "push",
                "caSecret": "corporate",
                "headers": {"X-Scope-OrgID": "team"},
                "labels": {"cluster": "a"},
            }
        }
    },
    "pushed in plain text": {
        "monitoring": {
            "push": {"url": "http://mimir.metrics/api/v1/push", "basicAuthSecret": "push", "allowHttp": True}
        }
    },
    "without exporters": {"exporter": {"enabled": False}, "monitoring": MONITORING},
    "exporters in a namespace that is there": {
        "exporter": {
            "namespace": "kube-system",
            "createNamespace": False,
            "serviceAccount": {"create": False},
            "nodeSelector": {},
            "runtimeClassName": "nvidia",
            "priorityClassName": "system-node-critical",
            "withoutCollectors": ["nvlink", "pcie"],
            "maxUnavailable": "1",
        }
    },
    "a driver of the host's, prices, idle jobs suspended": {
        "exporter": {"driverRoot": "/home/kubernetes/bin/nvidia", "privileged": True, "kubeletRoot": "/data/kubelet"},
        "api": {
            "gpuPrices": {"H100": 2.5, "*": 1},
            "currency": "EUR",
            "usageKeep": "1000d",
            "idle": {"after": "1h", "action": "Suspend"},
        },
    },
    "nothing kept": {"api": {"persistence": {"enabled": False}, "logBytes": 107374182400}},
    "storage of its own": {
        "api": {
            "persistence": {
                "size": "1Ti",
                "storageClass": "fast",
                "accessMode": "ReadWriteMany",
                "annotations": {"example.com/backup": "daily"},
                "keep": False,
            }
        }
    },
    "storage that is there": {"api": {"persistence": {"existingClaim": "logs"}}},
    "no network policies": {"networkPolicy": {"enabled": False}},
    "narrow network policies": {
        "networkPolicy": {
            "api": {"from": [{"namespaceSelector": {"matchLabels": {"stoker": "project"}}}]},
            "operator": {"from": [{"namespaceSelector": {"matchLabels": {"name": "monitoring"}}}]},
            "egress": {
                "apiServer": {"ports": [443], "to": [{"ipBlock": {"cidr": "10.0.0.1/32"}}]},
                "dns": {"ports": [53, 5353], "to": [{"namespaceSelector": {}}]},
            },
        }
    },
    "rights by another owner": {
        "rbac": {"create": False},
        "operator": {"serviceAccount": {"create": False, "name": "their-operator"}},
        "api": {"serviceAccount": {"create": False}},
    },
    "closed": {
        "rbac": {"aggregate": False, "openDefaultQueue": False, "openLists": False},
        "admission": {"enabled": False},
    },
    "other names": {
        "nameOverride": "trainer",
        "fullnameOverride": "gpu-farm",
        "clusterDomain": "corp.example",
        "api": {"serviceAccount": {"create": True, "name": "front-desk"}},
    },
}
