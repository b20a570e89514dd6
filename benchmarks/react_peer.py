"""The peer: LangGraph's ReAct agent at the coding task, with the providers' packages of LangChain.

Owns: how it is installed and run, with the prompt cache on. Knows nothing of Pursuit: it runs in a process of its own,
with an interpreter that has LangGraph.

Run: python benchmarks/react_peer.py SHAPE    (addresses and keys of the provider are in the environment)
"""

from __future__ import annotations

import sys
import warnings
from typing import Any

from coding_task import GOAL, INSTRUCTIONS, MODELS, STEPS, Workspace
from environment import interpreter

PACKAGES = ("langgraph", "langchain-anthropic", "langchain-openai")


def react_python() -> str:
    """A Python that has LangGraph and LangChain's packages."""
    return interpreter("react", [name.replace("-", "_") for name in PACKAGES], PACKAGES)


def chat_model(shape: str) -> Any:
    if shape == "anthropic":
        from langchain_anthropic import ChatAnthropic

        cached = {"cache_control": {"type": "ephemeral"}}
        return ChatAnthropic(model_name=MODELS[shape], max_tokens_to_sample=4_096, model_kwargs=cached)
    from langchain_openai import ChatOpenAI

    return ChatOpenAI(model=MODELS[shape], use_responses_api=shape == "openai-responses")


def run(shape: str) -> None:
    from importlib.metadata import version

    warnings.simplefilter("ignore")  # the ReAct agent has a successor in another package
    from langgraph.prebuilt import create_react_agent

    agent = create_react_agent(chat_model(shape), Workspace().tools, prompt=INSTRUCTIONS)
    agent.invoke({"messages": [("user", GOAL)]}, {"recursion_limit": 3 * STEPS})
    print(version("langgraph"), flush=True)


if __name__ == "__main__":
    run(sys.argv[1])
